#include "router/recent_load.h"

#include <algorithm>
#include <cmath>
#include <cstddef>

namespace aisp {
namespace {

constexpr size_t kEach = 4;    // parts of one size
constexpr double kSurely = 8;  // log of the likelihood ratio
constexpr double kFew = 4;     // requests that show no change yet
constexpr double kLongestS = 60;
constexpr double kLeastS = 0.1;
// Prior for how prompts meet streams, in streams that arrivals saw: as if placed at random.
constexpr double kMet = 10;

double LogLikelihood(double count, double s) {
  return count > 0 && s > 0 ? count * std::log(count / s) : 0;
}

}  // namespace

void RecentLoad::Part::Add(const Part& p) {
  requests += p.requests;
  s += p.s;
  delay_ms += p.delay_ms;
  delays_ms += p.delays_ms;
  running += p.running;
  more += p.more;
  answer_tokens += p.answer_tokens;
  prompt_tokens += p.prompt_tokens;
}

RecentLoad::Part RecentLoad::All() const {
  Part all;
  for (const Part& part : parts_) all.Add(part);
  return all;
}

void RecentLoad::Add(Instant now, const MeanRequest& request) {
  constexpr double kSameTimeS = 1e-6;
  const double since_s = any_ ? std::max(kSameTimeS, ToSeconds(now - last_)) : kLeastS;
  any_ = true;
  last_ = now;
  parts_.push_back({1, since_s, request.delay_ms, request.delay_ms * request.beside,
                    request.running, request.more, request.answer_tokens, request.prompt_tokens});
  Merge();
  Cut();
}

// Of more than kEach parts of one size, the oldest two become one.
void RecentLoad::Merge() {
  size_t end = parts_.size();
  for (double size = 1; end > 0; size *= 2) {
    size_t begin = end;
    while (begin > 0 && parts_[begin - 1].requests < 1.5 * size) --begin;
    if (end - begin <= kEach) return;
    parts_[begin].Add(parts_[begin + 1]);
    parts_.erase(parts_.begin() + static_cast<std::ptrdiff_t>(begin) + 1);
    end = begin + 1;
  }
}

void RecentLoad::Cut() {
  const Part all = All();
  const double alike = LogLikelihood(all.requests, all.s);
  Part late;
  double best = kSurely;
  size_t first = 0;
  for (size_t i = parts_.size(); i-- > 1;) {
    late.Add(parts_[i]);
    const double ratio = LogLikelihood(late.requests, late.s) - alike +
                         LogLikelihood(all.requests - late.requests, all.s - late.s);
    if (ratio <= best || late.requests < kFew) continue;
    best = ratio;
    first = i;
  }
  if (first == 0 && all.s > kLongestS && parts_.size() > 1) first = 1;
  parts_.erase(parts_.begin(), parts_.begin() + static_cast<std::ptrdiff_t>(first));
}

RecentLoad::Load RecentLoad::Of(double decode_workers) const {
  const Part all = All();
  if (all.requests <= 0) return {};
  const double n = all.requests, delay_ms = all.delay_ms / n;
  const double met =
      (all.delays_ms + kMet * delay_ms / std::max(1.0, decode_workers)) / (all.running + kMet);
  return {n / std::max(kLeastS, all.s), std::min(delay_ms, met), all.more / n,
          all.answer_tokens / n, all.prompt_tokens / n};
}

}  // namespace aisp
