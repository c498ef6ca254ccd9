#include "text/stop_strings.h"

#include <algorithm>

namespace aisp {
namespace {

std::vector<size_t> FailureOf(const std::string& text) {
  std::vector<size_t> failure(text.size(), 0);
  for (size_t i = 1, k = 0; i < text.size(); ++i) {
    while (k > 0 && text[i] != text[k]) k = failure[k - 1];
    if (text[i] == text[k]) ++k;
    failure[i] = k;
  }
  return failure;
}

}  // namespace

StopMatcher::StopMatcher(std::vector<std::string> stops, bool include_stop)
    : include_stop_(include_stop) {
  for (std::string& stop : stops) {
    if (stop.empty()) continue;
    std::vector<size_t> failure = FailureOf(stop);
    patterns_.push_back({std::move(stop), std::move(failure), 0});
  }
}

StopMatcher::Output StopMatcher::Push(std::string_view text) {
  Output out;
  if (stopped_) return out;
  held_.append(text);
  const size_t first_new = held_.size() - text.size();
  for (size_t i = 0; i < text.size() && !patterns_.empty(); ++i) {
    const Pattern* found = nullptr;
    for (Pattern& p : patterns_) {
      while (p.matched > 0 && p.text[p.matched] != text[i]) p.matched = p.failure[p.matched - 1];
      if (p.text[p.matched] == text[i]) ++p.matched;
      if (p.matched < p.text.size()) continue;
      if (found == nullptr || p.text.size() > found->text.size()) found = &p;
      p.matched = p.failure[p.matched - 1];
    }
    if (found == nullptr) continue;
    const size_t end = first_new + i + 1;
    stopped_ = true;
    out.stopped = true;
    out.stop = found->text;
    out.text = held_.substr(0, include_stop_ ? end : end - found->text.size());
    held_.clear();
    return out;
  }
  size_t keep = 0;
  for (const Pattern& p : patterns_) keep = std::max(keep, p.matched);
  out.text = held_.substr(0, held_.size() - keep);
  held_.erase(0, held_.size() - keep);
  return out;
}

std::string StopMatcher::Flush() {
  std::string text;
  text.swap(held_);
  for (Pattern& p : patterns_) p.matched = 0;
  return text;
}

}  // namespace aisp
