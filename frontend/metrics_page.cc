#include "frontend/metrics_page.h"

#include <algorithm>

namespace aisp {

const std::string& MetricsPage::Text(const Clock& clock) {
  const Instant now = clock.Now();
  if (since_ != kNever) saved_ = std::min(kBurst, saved_ + (now - since_) / kShare);
  since_ = now;
  if (saved_ <= Duration{}) return text_;
  text_ = metrics_->Render();
  saved_ -= clock.Now() - now;
  return text_;
}

}  // namespace aisp
