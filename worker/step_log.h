// StepLog: every step of a worker as a line of a CSV file: what it held and how long it took. From
// it `tools/fit_steps.py` makes a worker profile for `aisp simulate`. One thread at a time.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "engine/engine.h"

namespace aisp {

class StepLog {
 public:
  // FOLDER/WORKER.csv, which is begun anew; what is no letter, digit, '-' or '_' of the name is
  // '_'. The folder must exist: NOT_FOUND where the file cannot be made.
  static Result<std::unique_ptr<StepLog>> Open(const std::string& folder,
                                               const std::string& worker);

  // `end`: when the step was collected. The line is written when a buffer is full, at the latest
  // when the log ends.
  void Add(const StepTiming& timing, Instant end);

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };
  using File = std::unique_ptr<std::FILE, Close>;
  explicit StepLog(File file);

  File file_;
};

}  // namespace aisp
