// A server that has been queried, and runs against it: one for a plain run, many for sweeps and
// comparisons. Prints notes as they come; a run's result is its Outcome.
//
// One thread; each run has its own loop. A session may be moved between runs.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/metrics.h"
#include "loadgen/options.h"
#include "loadgen/record.h"
#include "loadgen/report.h"
#include "loadgen/target.h"

namespace aisp::loadgen {

struct Outcome {
  Options options;  // of this run: a sweep varies rate and seed
  Environment environment;
  Summary summary;
  std::vector<RequestRecord> records;
  bool interrupted = false;
  bool stopped = false;  // early, since the limits could not be met any more
};

class Session {
 public:
  // Reads the dataset once, to find errors before the server is queried. `args`: for the report.
  static Result<Session> Open(const Options& options, const std::vector<std::string>& args);

  // One run with these options, which may differ from those of Open only in rate, concurrency,
  // count and seed. Its dataset is made anew from the seed.
  Result<Outcome> Run(const Options& options);
  const std::string& server() const { return base_.server; }
  const std::string& model() const { return base_.model; }
  const std::string& date() const { return base_.date; }

 private:
  Target target_;
  Environment base_;  // common to all runs
  bool said_notes_ = false;
};

}  // namespace aisp::loadgen
