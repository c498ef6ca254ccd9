// MetricsPage: the text of /metrics, which needs no key. Rendering costs as much as dozens of
// requests, so it may use only a share of the thread's time plus a burst. Beyond that the last text
// is returned again. One thread.
#pragma once

#include <string>

#include "common/clock.h"
#include "common/metrics.h"

namespace aisp {

class MetricsPage {
 public:
  // At most 1/20 of the time; up to 0.1 s may be saved up.
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
