#include "planner/load_forecast.h"

#include <algorithm>
#include <cmath>

namespace aisp::planner {
namespace {

constexpr size_t kMaxSamples = 256;
// Dispersion is measured over so many seconds.
constexpr size_t kCountedSeconds = 32;
constexpr size_t kFewestSeconds = 8;
// Bound on the extrapolated growth: the start of a load is no trend.
constexpr double kMostGrowth = 1.25;
// A step of the mean size of requests: by this factor, and by so many standard deviations of the
// difference. Means of fewer requests say nothing.
constexpr double kOtherSize = 1.25;
constexpr double kDeviations = 7;
constexpr double kFewRequests = 8;
// Steps are looked for in the last seconds.
constexpr Duration kSoon = std::chrono::seconds(2);
// What is noticed within this time is one step. So many steps within a minute are a mix that
// changes all the time.
constexpr Duration kOneStep = std::chrono::seconds(5);
constexpr size_t kManySteps = 3;
constexpr Duration kStepsWithin = std::chrono::seconds(60);

uint64_t Less(uint64_t now, uint64_t before) { return now > before ? now - before : 0; }

// The index of the first sample at or after `at`, or of the last one.
size_t From(const auto& samples, Instant at) {
  const auto found = std::find_if(samples.begin(), samples.end() - 1,
                                  [at](const auto& sample) { return sample.at >= at; });
  return static_cast<size_t>(found - samples.begin());
}

}  // namespace

LoadForecast::LoadForecast(Duration window, Duration lead) : window_(window), lead_(lead) {}

bool LoadForecast::Asked() const {
  const size_t n = samples_.size();
  return n < 2 || samples_[n - 1].totals.requests != samples_[n - 2].totals.requests;
}

void LoadForecast::Remember(Instant now, const RouterTotals& totals) {
  // A restarted router counts from zero: earlier samples are not comparable.
  if (!samples_.empty() && totals.requests < samples_.back().totals.requests) {
    samples_.clear();
    second_.reset();
  }
  Count(now, totals);
  samples_.push_back({now, totals});
  while (samples_.size() > kMaxSamples || (samples_.size() > 2 && now - samples_[1].at >= window_))
    samples_.pop_front();
  if (samples_.size() < 2) return;
  FindSteps(now);
  // Over the newer half, if enough answers have ended in it.
  const Instant first = samples_.front().at;
  const Instant newer = std::max(answers_.since, first + (now - first) / 2);
  for (const Instant from : {Restless() ? first : newer, first}) {
    const RouterTotals& before = samples_[From(samples_, from)].totals;
    const auto finished = static_cast<double>(Less(totals.finished, before.finished));
    if (finished == 0) continue;
    new_tokens_ =
        std::max(1.0, static_cast<double>(Less(totals.new_tokens, before.new_tokens)) / finished);
    if (finished >= kFewRequests) break;
  }
}

void LoadForecast::FindSteps(Instant now) {
  bool any = false;
  for (Sizes* sizes : {&prompts_, &answers_}) {
    const Instant since = StepOf(*sizes);
    any = any || since != Instant{};
    sizes->since = std::max(sizes->since, since);
  }
  // Prompts and answers of one step are noticed some time apart, and in parts.
  if (!any || (!steps_.empty() && now - steps_.back() < kOneStep)) return;
  steps_.push_back(now);
  if (steps_.size() > kManySteps) steps_.pop_front();
}

bool LoadForecast::Restless() const {
  return steps_.size() == kManySteps && samples_.back().at - steps_.front() < kStepsWithin;
}

// By the t statistic of two means: the variance of requests is estimated from the differences
// between samples, so that loads with requests of all sizes have no steps.
Instant LoadForecast::StepOf(const Sizes& sizes) const {
  struct Part {
    double requests = 0, tokens = 0, squares = 0;
    int samples = 0;
    double mean() const { return tokens / requests; }
    double within() const { return squares - tokens * mean(); }
  };
  const auto part = [&](size_t begin, size_t end) {
    Part all;
    for (size_t i = begin; i < end; ++i) {
      const RouterTotals& a = samples_[i].totals;
      const RouterTotals& b = samples_[i + 1].totals;
      const auto requests = static_cast<double>(Less(b.*sizes.requests, a.*sizes.requests));
      const auto tokens = static_cast<double>(Less(b.*sizes.tokens, a.*sizes.tokens));
      if (requests == 0) continue;
      all.requests += requests;
      all.tokens += tokens;
      all.squares += tokens * tokens / requests;
      ++all.samples;
    }
    return all;
  };
  const size_t first = From(samples_, sizes.since);
  const size_t last = samples_.size() - 1;
  double most = kDeviations;
  Instant step{};
  for (size_t i = From(samples_, samples_[last].at - kSoon); i < last; ++i) {
    const Part before = part(first, i);
    const Part now = part(i, last);
    if (std::min(before.requests, now.requests) < kFewRequests) continue;
    if (before.samples + now.samples < 4) continue;
    const double difference = std::abs(before.mean() - now.mean());
    if (difference < (kOtherSize - 1) * std::min(before.mean(), now.mean())) continue;
    // Few requests of very different sizes seem alike in one sample and not in another.
    const double pooled = (before.within() + now.within()) / (before.samples + now.samples - 2);
    const double own = now.within() / std::max(1, now.samples - 1);
    const double variance =
        std::max({1e-6, pooled, own}) * (1 / before.requests + 1 / now.requests);
    const double deviations = difference / std::sqrt(variance);
    if (deviations < most) continue;
    most = deviations;
    step = samples_[i].at;
  }
  return step;
}

void LoadForecast::Count(Instant now, const RouterTotals& totals) {
  if (!second_) second_ = Sample{now, totals};
  const double seconds = ToSeconds(now - second_->at);
  if (seconds < 1) return;
  arrivals_.push_back(static_cast<double>(Less(totals.requests, second_->totals.requests)) /
                      seconds);
  if (arrivals_.size() > kCountedSeconds) arrivals_.pop_front();
  second_ = Sample{now, totals};
}

// From differences between consecutive seconds, so that steady growth is no burst. The largest rise
// and fall are ignored: they may be the start or end of a load.
double LoadForecast::Dispersion() const {
  if (arrivals_.size() < kFewestSeconds) return 1;
  double sum = 0, squares = 0, rise = 0, fall = 0;
  for (size_t i = 0; i < arrivals_.size(); ++i) {
    sum += arrivals_[i];
    if (i == 0) continue;
    const double difference = arrivals_[i] - arrivals_[i - 1];
    squares += difference * difference;
    rise = std::max(rise, difference);
    fall = std::min(fall, difference);
  }
  if (sum <= 0) return 1;
  const auto seconds = static_cast<double>(arrivals_.size());
  const double variance = (squares - rise * rise - fall * fall) / 2 / (seconds - 3);
  return std::max(1.0, variance / (sum / seconds));
}

Load LoadForecast::Between(const Sample& from, const Sample& to) const {
  Load load;
  load.new_tokens = new_tokens_;
  const double seconds = ToSeconds(to.at - from.at);
  const auto requests = static_cast<double>(Less(to.totals.requests, from.totals.requests));
  if (seconds <= 0 || requests == 0) return load;
  load.requests_per_s = requests / seconds;
  load.prompt_tokens =
      static_cast<double>(Less(to.totals.prompt_tokens, from.totals.prompt_tokens)) / requests;
  const auto placed = static_cast<double>(Less(to.totals.placed_tokens, from.totals.placed_tokens));
  const auto uncached =
      static_cast<double>(Less(to.totals.uncached_tokens, from.totals.uncached_tokens));
  load.uncached_tokens = load.prompt_tokens * (placed > 0 ? std::min(1.0, uncached / placed) : 1);
  return load;
}

Load LoadForecast::Next() {
  Load load = WithoutBursts();
  load.dispersion = Dispersion();
  return load;
}

// The shape of the newer half of the window, at a rate that keeps growing as it did.
Load LoadForecast::WithoutBursts() {
  measured_per_s_ = 0;
  if (samples_.size() < 2) return {};
  const Sample& first = samples_.front();
  const Sample& last = samples_.back();
  const size_t half = From(samples_, first.at + (last.at - first.at) / 2);
  const Sample& middle = samples_[half];
  const Load whole = Between(first, last);
  measured_per_s_ = whole.requests_per_s;
  if (half == 0 || half + 1 == samples_.size()) return whole;
  const Load before = Between(first, middle);
  Load load = Between(middle, last);
  const Load shape = Between(
      samples_[From(samples_, std::max(middle.at, Restless() ? Instant{} : prompts_.since))], last);
  if (shape.requests_per_s > 0) {
    load.prompt_tokens = shape.prompt_tokens;
    load.uncached_tokens = shape.uncached_tokens;
  }
  const double rate = load.requests_per_s;
  if (rate == 0) return whole;
  const double seconds = ToSeconds(last.at - first.at) / 2;
  const double growth = (rate - before.requests_per_s) / std::max(seconds, 1e-3);
  // Poisson noise is no trend.
  const double noise = 2 * std::sqrt((rate + before.requests_per_s) / std::max(seconds, 1e-3));
  const bool grows = rate - before.requests_per_s > noise;
  measured_per_s_ = std::min(rate, whole.requests_per_s);
  load.requests_per_s = grows ? std::min(rate + growth * ToSeconds(lead_), kMostGrowth * rate)
                              : std::max(rate, whole.requests_per_s);
  return load;
}

}  // namespace aisp::planner
