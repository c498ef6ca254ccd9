// Runs at several rates or concurrencies, and the search for the highest rate at which enough
// requests meet their limits (goodput frontier).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/session.h"

namespace aisp::loadgen {

// Chooses the next rate. Doubles while the limits are met (halves until they are), then bisects
// between the highest rate that met them and the lowest that did not, at their geometric mean,
// until they are close. Pure; at most kMaxRuns.
class RateSearch {
 public:
  static constexpr int kMaxRuns = 40;
  // `precision`: the relative difference at which the search ends.
  RateSearch(double start, double precision) : start_(start), precision_(precision) {}
  // nullopt: the search has ended.
  std::optional<double> Next() const;
  void Record(double rate, bool kept);
  // The highest rate that met the limits.
  std::optional<double> best() const { return low_; }
  // The lowest rate that did not.
  std::optional<double> failed() const { return high_; }

 private:
  double start_;
  double precision_;
  int runs_ = 0;
  std::optional<double> low_, high_;
};

struct SweepPoint {
  double value = 0;        // requests per second, or concurrent requests
  double attainment = -1;  // good requests over planned ones; -1: no limits were given
  bool kept = false;       // attainment is sufficient
  bool stopped = false;    // early: it could not become sufficient
  Outcome outcome;
};

struct SweepResult {
  bool of_rates = true;
  std::vector<SweepPoint> points;  // ascending by value
  std::optional<size_t> best;      // the highest that met the limits
  bool interrupted = false;
};

Result<SweepResult> RunSweep(Session* session, const Options& options);

std::string SweepTable(const Options& options, const SweepResult& sweep);
std::string SweepJson(const Options& options, const SweepResult& sweep);
std::string SweepCsv(const SweepResult& sweep);

}  // namespace aisp::loadgen
