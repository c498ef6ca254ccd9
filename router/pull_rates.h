// PullRates: how long prefixes take from one worker's cache to another's, learnt for each pair from
// those that were pulled.
//
// Nothing is assumed of a pair that never pulled but what its lane is at worst; so that this does
// not stay so for good it is tried now and then as if it were good, one prefix each kTrialEvery. A
// pair that failed or was late is left alone for a while, twice as long each time in a row.
//
// Bounded by kMaxPairs; the one that was used longest ago goes. The router's thread.
#pragma once

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
  // A pull was asked for: of a pair that is not known it is the trial.
  void Started(std::string_view holder, std::string_view decode, Instant now);
  void Learn(std::string_view holder, std::string_view decode, const v1::PrefixPull& pull,
             Instant now);
  size_t pairs() const { return pairs_.size(); }

 private:
  struct Pair {
    Pair();
    LinearFit<2> fit;  // ms of {1, MB}
    Instant used{INT64_MIN};
    Instant next_trial{INT64_MIN};
    Instant not_before{INT64_MIN};
    Duration backoff{};
  };
  using Names = std::pair<std::string, std::string>;  // holder, decode
  Pair& Of(std::string_view holder, std::string_view decode, Instant now);

  std::map<Names, Pair> pairs_;
};

}  // namespace aisp
