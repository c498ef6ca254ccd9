// Runs at several rates or concurrencies against one server, and the search for the highest rate at
// which enough requests keep their limits (goodput frontier).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/session.h"

namespace aisp::loadgen {

// Which rate to try next. Doubles while the limits are kept (halves until they are), then goes
// between the highest rate that kept them and the lowest that did not, at their geometric mean,
// until they are near each other. Pure; at most kMaxRuns.
class RateSearch {
 public:
  static constexpr int kMaxRuns = 40;
  // `precision`: the search is over when the two are this part of the lower one apart.
  RateSearch(double start, double precision) : start_(start), precision_(precision) {}
  // nullopt: it is over.
  std::optional<double> Next() const;
  void Record(double rate, bool kept);
  // The highest that kept the limits.
  std::optional<double> best() const { return low_; }
  // The lowest that did not.
  std::optional<double> failed() const { return high_; }

 private:
  double start_;
  double precision_;
  int runs_ = 0;
  std::optional<double> low_, high_;
};

struct SweepPoint {
  double value = 0;        // requests per second, or requests at a time
  double attainment = -1;  // good requests of those planned; -1: no limits were given
  bool kept = false;       // attainment is enough
  bool stopped = false;    // early: it could not be enough any more
  Outcome outcome;
};

struct SweepResult {
  bool of_rates = true;
  std::vector<SweepPoint> points;  // ascending by value
  std::optional<size_t> best;      // the highest that kept the limits
  bool interrupted = false;
};

Result<SweepResult> RunSweep(Session* session, const Options& options);

std::string SweepTable(const Options& options, const SweepResult& sweep);
std::string SweepJson(const Options& options, const SweepResult& sweep);
std::string SweepCsv(const SweepResult& sweep);

}  // namespace aisp::loadgen
