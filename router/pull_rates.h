// PullRates: how long pulls of prefixes take, learnt for each pair of workers.
//
// A pair without samples gets the estimate of other pairs of its kind (same host, or across hosts)
// plus a half. A kind without any samples counts as a slow link; one prefix each kTrialEvery is
// pulled as a trial, so that samples appear. A pair that failed, refused or was late is not
// used for a while, which doubles with each failure in a row.
//
// Bounded by kMaxPairs; the least recently used pair is dropped. The router's thread.
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

  // Predicted ms from the request to having `bytes`; absent: the pair is not to be used now.
  std::optional<double> PredictMs(const WorkerView& holder, const WorkerView& decode, double bytes,
                                  Instant now) const;
  // A pull was requested. For a kind without samples it is the trial.
  void Started(const WorkerView& holder, const WorkerView& decode, Instant now);
  void Learn(std::string_view holder, std::string_view decode, const v1::PrefixPull& pull,
             Instant now);
  size_t pairs() const { return pairs_.size(); }

 private:
  struct Pair {
    Pair();
    LinearFit<2> fit;  // ms as a function of {1, MB}
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
  std::array<Kind, 2> kinds_;  // across hosts, and on one host
};

}  // namespace aisp
