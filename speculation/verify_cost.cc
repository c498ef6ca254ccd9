#include "speculation/verify_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace aisp {
namespace {

constexpr double kMostSeen = 20;    // maximum weight of a mean, in samples
constexpr double kHalfLife = 2048;  // half-life of a knot, in samples of other knots
constexpr double kFaded = 0.3;      // weight below which a knot counts as never seen
constexpr double kFewSamples = 3;   // up to so many samples, a much shorter one replaces the mean
constexpr double kLevel = 0.03;     // weight of a sample in the common level
// Drift: mean error of samples of knots with at least kWellKnown samples, and its limit.
constexpr double kWellKnown = 10, kDrift = 0.1, kMuchDrift = 0.15;
constexpr double kShortest = 0.6, kLongest = 1.4;  // of the prediction; beyond are outliers
constexpr double kHope = 0.25;                     // optimism for a step never seen
constexpr double kTrusted = 2.5;                   // samples

// Thresholds of the relative variance: above kNoisy means average over more samples and knots rely
// more on their neighbours. Optimism and the drift limit scale with the standard deviation.
constexpr double kNoisy = 0.02, kMuchNoise = 0.04;
constexpr double kMostMore = 10;  // times kMostSeen
constexpr double kHopeOfNoise = 0.15, kDriftOfNoise = 1.0, kMostHope = 0.6;
constexpr double kLeastOff = 0.3, kMostOff = 1.7;  // relative to the prediction; clamped
constexpr double kForgetNoise = 0.02;

// Before two knots are known: relative cost of one more row, of twice the rows, and the base. All
// are low, so that drafts are tried.
constexpr double kFirstSlope = 0.05, kFirstDouble = 0.35;
constexpr double kUnsureSlope = 3;  // standard deviation, relative to that slope
constexpr double kLeastLeft = 0.3;

constexpr double kForget = 0.02;        // in the covariance of time and context
constexpr double kLittleSpread = 0.01;  // contexts within a tenth of each other give no information

// Context tokens that a row reads.
double OfRow(int64_t context_tokens, int32_t rows) {
  return std::max(1.0, static_cast<double>(context_tokens) / std::max(1, rows));
}

double UsualSlope(double rows) { return std::min(kFirstSlope, kFirstDouble / rows); }

}  // namespace

double VerifyCost::Elasticity() const {
  return std::clamp(together_ / (spread_ + kLittleSpread), 0.0, 1.0);
}

// Knots: every number of rows up to 16, then every 4; from 64 every 8; from 128 every 16.
VerifyCost::VerifyCost() {
  constexpr std::array<int32_t, 5> kWidths{1, 4, 8, 16, 32}, kEnds{16, 64, 128, 256, 640};
  int32_t end = 0;
  for (size_t i = 0; i < kWidths.size(); ++i) {
    while (end < kEnds[i]) ends_.push_back(end += kWidths[i]);
  }
  knots_.resize(ends_.size());
  seen_.resize(ends_.size());
}

void VerifyCost::PadTo(std::span<const int32_t> sizes) {
  *this = VerifyCost();
  padded_ = !sizes.empty();
  if (padded_) ends_.assign(sizes.begin(), sizes.end());
  knots_.assign(padded_ ? 2 * ends_.size() : ends_.size(), Knot{});
  seen_.assign(knots_.size(), 0);
}

VerifyCost::Place VerifyCost::PlaceOf(int32_t rows, int32_t drafts) const {
  const auto end = std::lower_bound(ends_.begin(), ends_.end(), rows);
  const auto knot = static_cast<size_t>(std::min(end, ends_.end() - 1) - ends_.begin());
  if (padded_ && drafts == 0) return {ends_.size() + knot, static_cast<double>(rows)};
  return {knot, static_cast<double>(padded_ && end != ends_.end() ? *end : rows)};
}

int32_t VerifyCost::LastLike(int32_t rows) const {
  const auto end = std::lower_bound(ends_.begin(), ends_.end(), rows);
  return end == ends_.end() ? rows : *end;
}

void VerifyCost::Decay() {
  for (size_t k = 0; k < knots_.size(); ++k) {
    const auto age = static_cast<double>(samples_ - knots_[k].last);
    seen_[k] = knots_[k].seen == 0 ? 0 : knots_[k].seen * std::exp2(-age / kHalfLife);
  }
}

double VerifyCost::SecondsAt(const Knot& knot, double context) const {
  return knot.seconds * (1 + Elasticity() * (context / knot.context - 1));
}

void VerifyCost::Add(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took) {
  if (rows < 1 || took.count() <= 0) return;
  ++samples_;
  Decay();
  const Place place = PlaceOf(rows, drafts);
  const size_t at = place.knot;
  Learn(&knots_[at], seen_[at], place.rows, OfRow(context_tokens, rows), ToSeconds(took) / level_);
  seen_[at] = knots_[at].seen;
}

void VerifyCost::Learn(Knot* at, double seen, double rows, double context, double seconds) {
  Knot& knot = *at;
  knot.last = samples_;
  // If all samples are noisy, a short one is as accidental as a long one.
  const bool held_up =
      seen < kFewSamples && noise_ < kMuchNoise && seconds < kShortest * SecondsAt(knot, context);
  if (seen < kFaded || held_up) {  // the first sample, or the earlier ones were delayed
    knot = {seconds, rows, context, 1, samples_};
    return;
  }
  const double expected = SecondsAt(knot, context);
  const double off = std::clamp(seconds / expected, kShortest, kLongest) - 1;
  NoteNoise(seconds / expected);
  const double weight = 1 / (seen + 1);
  const double away = context / knot.context - 1;
  together_ += kForget * ((expected * (1 + off) / knot.seconds - 1) * away - together_);
  spread_ += kForget * (away * away - spread_);
  knot.seconds += weight * (expected * (1 + off) - knot.seconds);
  knot.rows += weight * (rows - knot.rows);
  knot.context += weight * (context - knot.context);
  knot.seen = std::min(seen + 1, kMostSeen * std::clamp(noise_ / kNoisy, 1.0, kMostMore));
  level_ *= 1 + kLevel / std::max(1.0, noise_ / kNoisy) * off;
  if (seen < kWellKnown) return;
  // If several well-known knots all take longer, the machine has become slower.
  drift_ += kDrift * (off - drift_);
  if (std::abs(drift_) < std::max(kMuchDrift, kDriftOfNoise * std::sqrt(noise_))) return;
  level_ *= 1 + drift_;
  drift_ = 0;
}

// Between consecutive samples, so that a general slowdown does not count as noise.
void VerifyCost::NoteNoise(double of_expected) {
  const double off = std::clamp(of_expected, kLeastOff, kMostOff);
  const double step = off - std::exchange(last_off_, off);
  const double part = std::max(kForgetNoise, 1.0 / (11 + static_cast<double>(samples_)));
  noise_ += part * (step * step / 2 - noise_);
}

// For padded steps: those with drafts or those without, if another knot of that kind is known; else
// all.
VerifyCost::Kind VerifyCost::KindOf(size_t knot) const {
  if (!padded_) return {0, knots_.size()};
  const Kind kind = knot < ends_.size() ? Kind{0, ends_.size()} : Kind{ends_.size(), knots_.size()};
  for (size_t k = kind.begin; k < kind.end; ++k) {
    if (k != knot && seen_[k] >= kFaded) return kind;
  }
  return {0, knots_.size()};
}

// Least squares over all knots with a prior on the slope, stronger for noisier samples.
VerifyCost::Line VerifyCost::LineThroughAll(Kind kind, double context) const {
  double weight = 0, rows = 0, seconds = 0;
  for (size_t k = kind.begin; k < kind.end; ++k) {
    if (seen_[k] < kFaded) continue;
    weight += seen_[k];
    rows += seen_[k] * knots_[k].rows;
    seconds += seen_[k] * SecondsAt(knots_[k], context);
  }
  if (weight == 0) return {};
  Line line{rows / weight, seconds / weight, 0};
  double spread = 0, together = 0;
  for (size_t k = kind.begin; k < kind.end; ++k) {
    if (seen_[k] < kFaded) continue;
    const double away = knots_[k].rows - line.rows;
    spread += seen_[k] * away * away;
    together += seen_[k] * away * (SecondsAt(knots_[k], context) - line.seconds);
  }
  const double usual = UsualSlope(line.rows), unsure = kUnsureSlope * usual;  // of a step's time
  const double prior = noise_ / (unsure * unsure);
  line.slope =
      std::max(0.0, (together + prior * usual * line.seconds) / std::max(1e-12, spread + prior));
  return line;
}

// Few noisy samples of a knot are less reliable than the line through all knots.
double VerifyCost::Smoothed(size_t knot, double context, const Line& line) const {
  const double own = SecondsAt(knots_[knot], context);
  const double weight = noise_ / kNoisy - 1;
  if (weight <= 0) return own;
  const double along = std::max(kLeastLeft * line.seconds,
                                line.seconds + line.slope * (knots_[knot].rows - line.rows));
  return own + (along - own) * weight / (weight + seen_[knot]);
}

double VerifyCost::AlongOthers(double rows, double context, size_t but) const {
  const Kind kind = KindOf(but);
  const Line line = noise_ > kNoisy ? LineThroughAll(kind, context) : Line{};
  Point first, last, below, above;  // of known knots: both ends, and the neighbours
  // Neighbours of another kind serve if there is no better data, but do not override own samples.
  const bool any = noise_ <= kNoisy || seen_[but] < kFaded;
  const Kind near = any ? Kind{0, knots_.size()} : kind;
  for (size_t k = near.begin; k < near.end; ++k) {
    if (k == but || seen_[k] < kFaded) continue;
    const Point point{knots_[k].rows, Smoothed(k, context, line)};
    if (first.rows == 0 || point.rows < first.rows) first = point;
    if (point.rows > last.rows) last = point;
    if (point.rows <= rows && point.rows > below.rows) below = point;
    if (point.rows > rows && (above.rows == 0 || point.rows < above.rows)) above = point;
  }
  if (first.rows == 0) return 0;
  if (below.rows > 0 && above.rows > 0) {
    const double part = (rows - below.rows) / (above.rows - below.rows);
    return below.seconds + part * (above.seconds - below.seconds);
  }
  const double span = last.rows - first.rows;
  const Point& end = below.rows > 0 ? below : above;
  double slope =
      span > 0 ? (last.seconds - first.seconds) / span : end.seconds * UsualSlope(end.rows);
  if (span == 0 && rows < end.rows) slope = (1 - kLeastLeft) * end.seconds / end.rows;
  return std::max(kLeastLeft * end.seconds, end.seconds + std::max(0.0, slope) * (rows - end.rows));
}

double VerifyCost::OfRows(const Place& place, double context) const {
  const size_t at = place.knot;
  const double seen = seen_[at], along = AlongOthers(place.rows, context, at);
  if (seen < kFaded) return along > 0 ? along : 1.0 + kFirstSlope * (place.rows - 1);
  double own = SecondsAt(knots_[at], context);
  if (along <= 0) return own;
  // Within a knot, adjusts for the exact number of rows.
  own = std::max(0.5 * own, own + along - AlongOthers(knots_[at].rows, context, at));
  const double weight = std::max(1.0, noise_ / kNoisy);
  return own + (along - own) * weight / (weight + seen);
}

double VerifyCost::Predict(int32_t rows, int32_t drafts, int64_t context_tokens) const {
  return level_ * OfRows(PlaceOf(rows, drafts), OfRow(context_tokens, rows));
}

double VerifyCost::LowerEstimate(int32_t rows, int32_t drafts, int64_t context_tokens) const {
  const Place place = PlaceOf(rows, drafts);
  const double seen = seen_[place.knot];
  double seconds = Predict(rows, drafts, context_tokens);
  // The first samples may include a delay: the lower of both predictions counts.
  if (seen < kTrusted) {
    const double context = OfRow(context_tokens, rows);
    const double along = level_ * AlongOthers(place.rows, context, place.knot);
    if (along > 0) seconds = std::min(seconds, along);
  }
  const double hope = std::max(kHope / (1 + seen), kHopeOfNoise * std::sqrt(noise_ / (1 + seen)));
  return seconds * (1 - std::min(kMostHope, hope));
}

}  // namespace aisp
