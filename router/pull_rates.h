// PullRates: how long prefixes take from one worker's cache to another's, learnt for each pair from
// those that were pulled.
//
// A pair that never pulled is taken for what others on one host, or between hosts, took, and a half
// more. Of a kind of pairs of which none has, nothing is assumed but what a lane is at worst; so
// that this does not stay so for good it is tried now and then as if it were a good one, one prefix
// each kTrialEvery. A pair that failed or was late is left alone for a while, twice as long each
// time in a row.
//
// Bounded by kMaxPairs; the one that was used longest ago goes. The router's thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>

#include "common.pb.h"
#include "common/clock.h"
#include "router/linear_fit.h"
#include "router/policy.h"

namespace aisp {

class PullRates {
 public:
  static constexpr size_t kMaxPairs = 4096;
  static constexpr Duration kTrialEvery = std::chrono::seconds(5);

  // From asking to having `bytes`; absent: the pair is left alone now.
  std::optional<double> PredictMs(const WorkerView& holder, const WorkerView& decode, double bytes,
                                  Instant now) const;
  // A pull was asked for: of a kind that is not known it is the trial.
  void Started(const WorkerView& holder, const WorkerView& decode, Instant now);
  void Learn(std::string_view holder, std::string_view decode, const v1::PrefixPull& pull,
             Instant now);
  size_t pairs() const { return pairs_.size(); }

 private:
  struct Pair {
    Pair();
    LinearFit<2> fit;  // ms of {1, MB}
    bool same_host = false;
    Instant used{INT64_MIN};
    Instant not_before{INT64_MIN};
    Duration backoff{};
  };
  using Names = std::pair<std::string, std::string>;  // holder, decode
  struct Kind {
    Kind();
    LinearFit<2> fit;
    Instant next_trial{INT64_MIN};
  };
  static bool SameHost(const WorkerView& holder, const WorkerView& decode);
  Pair& Of(std::string_view holder, std::string_view decode, Instant now);

  std::map<Names, Pair> pairs_;
  std::array<Kind, 2> kinds_;  // between hosts, and on one
};

}  // namespace aisp
