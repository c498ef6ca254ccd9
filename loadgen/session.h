// A server that was asked what it serves, and runs against it: one for a plain run, many for sweeps
// and comparisons. Prints notes as they come; what a run found is its Outcome.
//
// One thread; each run has a loop of its own. A session may be moved between runs.
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
  Options options;  // of this run: a round of a sweep has its own rate and seed
  Environment environment;
  Summary summary;
  std::vector<RequestRecord> records;
  bool interrupted = false;
  bool stopped = false;  // early, since its limits could not be kept any more
};

class Session {
 public:
  // Reads the dataset once, so that a broken one is found before the server is asked. `args`: for
  // the report.
  static Result<Session> Open(const Options& options, const std::vector<std::string>& args);

  // One run with these options, which differ from those of Open in rate, concurrency, count and
  // seed at most. Its dataset is made anew from the seed.
  Result<Outcome> Run(const Options& options);
  const std::string& server() const { return base_.server; }
  const std::string& model() const { return base_.model; }
  const std::string& date() const { return base_.date; }

 private:
  Target target_;
  Environment base_;  // what all runs share
  bool said_notes_ = false;
};

}  // namespace aisp::loadgen
