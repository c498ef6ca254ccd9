// StepLog: every step of a worker as a row of a CSV file: its content and duration.
// `tools/fit_steps.py` turns it into a worker profile for `aisp simulate`. One thread at a time.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "common/result.h"
#include "worker/step_observer.h"

namespace aisp {

class StepLog final : public StepObserver {
 public:
  // FOLDER/WORKER.csv, truncated; characters of the name other than letters, digits, '-' and '_'
  // become '_'. NOT_FOUND: the file cannot be created, e.g. the folder is missing.
  static Result<std::unique_ptr<StepLog>> Open(const std::string& folder,
                                               const std::string& worker);

  // Buffered: written at the latest when the log is destroyed. For diagnosis: the file has no bound
  // (about 60 bytes a step), and failed writes are not reported.
  void OnStep(const StepTiming& timing, Instant end) override;

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  explicit StepLog(File file);

  File file_;
};

}  // namespace aisp
