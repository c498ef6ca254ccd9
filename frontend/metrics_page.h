// MetricsPage: the text of /metrics, which whoever reaches the port may ask for without a key. To
// render it takes as long as dozens of requests, so it is given a share of its thread's time and a
// burst: beyond them the last text is given again. One thread.
#pragma once

#include <string>

#include "common/clock.h"
#include "common/metrics.h"

namespace aisp {

class MetricsPage {
 public:
  // A twentieth of the time; a tenth of a second of it saved up at most.
  static constexpr int kShare = 20;
  static constexpr Duration kBurst = std::chrono::milliseconds(100);

  explicit MetricsPage(const Metrics* metrics) : metrics_(metrics) {}

  const std::string& Text(const Clock& clock);

 private:
  const Metrics* const metrics_;
  Duration saved_ = kBurst;
  Instant since_ = kNever;
  std::string text_;
};

}  // namespace aisp
