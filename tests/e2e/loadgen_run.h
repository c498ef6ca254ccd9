// Runs the built aisp-loadgen as a user does. Blocks until it has ended; any thread.
#pragma once

#include <string>

#include "tests/e2e/client.h"

namespace aisp::e2e {

struct LoadgenRun {
  int code = -1;
  std::string output;  // stdout and stderr
};
LoadgenRun RunLoadgen(const std::string& arguments);

// A file under the tests' temporary folder with a name of this process's own; removed at the end.
class TempFile {
 public:
  explicit TempFile(const std::string& name);
  ~TempFile();
  TempFile(const TempFile&) = delete;
  TempFile& operator=(const TempFile&) = delete;
  const std::string& path() const { return path_; }
  // Its content as JSON, "discarded" when it is none.
  Json ReadJson() const;

 private:
  std::string path_;
};

// Nothing runs or waits on the worker, and no block is in use or in quarantine.
bool GaveEverythingBack(const std::string& admin);

}  // namespace aisp::e2e
