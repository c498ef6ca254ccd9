#include "speculation/verify_cost.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <utility>

namespace aisp {
namespace {

constexpr double kMostSeen = 20;    // samples that a mean stands for: older ones are forgotten
constexpr double kHalfLife = 2048;  // of what a knot says, in samples of others
constexpr double kFaded = 0.3;      // samples; a knot that stands for fewer is as one never seen
constexpr double kFewSamples = 3;   // among as many, one that is much shorter counts alone
constexpr double kLevel = 0.03;     // weight of a sample in the level of all knots
// The mean of what samples of knots that stand for so many were off by, and how much is too much.
constexpr double kWellKnown = 10, kDrift = 0.1, kMuchDrift = 0.15;
constexpr double kShortest = 0.6, kLongest = 1.4;  // of what was predicted: more is an outlier
constexpr double kHope = 0.25;                     // of a step that was never seen
constexpr double kTrusted = 2.5;                   // samples

// By the noise of samples, a variance relative to what was predicted: that from which a mean is of
// more of them, and a knot is less sure of itself than its neighbours are of it; what part of a
// deviation may be hoped for, and is no drift.
constexpr double kNoisy = 0.02, kMuchNoise = 0.04;
constexpr double kMostMore = 10;  // times kMostSeen
constexpr double kHopeOfNoise = 0.15, kDriftOfNoise = 1.0, kMostHope = 0.6;
constexpr double kLeastOff = 0.3, kMostOff = 1.7;  // of what was predicted: more says no more
constexpr double kForgetNoise = 0.02;

// What a row more costs of a step, and as many rows again, and what no rows would leave of it,
// before two knots are known: all little enough to be tried.
constexpr double kFirstSlope = 0.05, kFirstDouble = 0.35;
constexpr double kUnsureSlope = 3;  // times that slope, a standard deviation
constexpr double kLeastLeft = 0.3;

constexpr double kForget = 0.02;        // in what is known of contexts
constexpr double kLittleSpread = 0.01;  // contexts within a tenth of each other tell nothing

// Tokens that a row reads.
double OfRow(int64_t context_tokens, int32_t rows) {
  return std::max(1.0, static_cast<double>(context_tokens) / std::max(1, rows));
}

double UsualSlope(double rows) { return std::min(kFirstSlope, kFirstDouble / rows); }

}  // namespace

double VerifyCost::Elasticity() const {
  return std::clamp(together_ / (spread_ + kLittleSpread), 0.0, 1.0);
}

// One for each number of rows up to 16, then for every 4, from 64 on every 8, from 128 on every 16.
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

void VerifyCost::Fade() {
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
  Fade();
  const Place place = PlaceOf(rows, drafts);
  const size_t at = place.knot;
  Learn(&knots_[at], seen_[at], place.rows, OfRow(context_tokens, rows), ToSeconds(took) / level_);
  seen_[at] = knots_[at].seen;
}

void VerifyCost::Learn(Knot* at, double seen, double rows, double context, double seconds) {
  Knot& knot = *at;
  knot.last = samples_;
  // Where all samples are noisy a short one is as much of an accident as a long one.
  const bool held_up =
      seen < kFewSamples && noise_ < kMuchNoise && seconds < kShortest * SecondsAt(knot, context);
  if (seen < kFaded || held_up) {  // the first one, or the one before was held up
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
  // Of sizes that are well known a few in a row that all took longer are the machine's doing.
  drift_ += kDrift * (off - drift_);
  if (std::abs(drift_) < std::max(kMuchDrift, kDriftOfNoise * std::sqrt(noise_))) return;
  level_ *= 1 + drift_;
  drift_ = 0;
}

// From one sample to the next, so that a machine which becomes slower for all does not count.
void VerifyCost::NoteNoise(double of_expected) {
  const double off = std::clamp(of_expected, kLeastOff, kMostOff);
  const double step = off - std::exchange(last_off_, off);
  const double part = std::max(kForgetNoise, 1.0 / (11 + static_cast<double>(samples_)));
  noise_ += part * (step * step / 2 - noise_);
}

// Of padded steps those with drafts or those without, where another of its kind is known; else all.
VerifyCost::Kind VerifyCost::KindOf(size_t knot) const {
  if (!padded_) return {0, knots_.size()};
  const Kind kind = knot < ends_.size() ? Kind{0, ends_.size()} : Kind{ends_.size(), knots_.size()};
  for (size_t k = kind.begin; k < kind.end; ++k) {
    if (k != knot && seen_[k] >= kFaded) return kind;
  }
  return {0, knots_.size()};
}

// Of all that was seen, with what slope is usual counting against it the more, the noisier it was.
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

// A few noisy samples say less of a knot than the line through all knots does.
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
  Point first, last, below, above;  // of known knots: the two ends, and the neighbours
  // Neighbours of another kind are better than none, but not where they count against own samples.
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
  // Of these rows; those of a knot differ little.
  own = std::max(0.5 * own, own + along - AlongOthers(knots_[at].rows, context, at));
  const double weight = std::max(1.0, noise_ / kNoisy);
  return own + (along - own) * weight / (weight + seen);
}

double VerifyCost::Predict(int32_t rows, int32_t drafts, int64_t context_tokens) const {
  return level_ * OfRows(PlaceOf(rows, drafts), OfRow(context_tokens, rows));
}

double VerifyCost::Hopeful(int32_t rows, int32_t drafts, int64_t context_tokens) const {
  const Place place = PlaceOf(rows, drafts);
  const double seen = seen_[place.knot];
  double seconds = Predict(rows, drafts, context_tokens);
  // It may have been held up: what the others say has to be disproved twice.
  if (seen < kTrusted) {
    const double context = OfRow(context_tokens, rows);
    const double along = level_ * AlongOthers(place.rows, context, place.knot);
    if (along > 0) seconds = std::min(seconds, along);
  }
  const double hope = std::max(kHope / (1 + seen), kHopeOfNoise * std::sqrt(noise_ / (1 + seen)));
  return seconds * (1 - std::min(kMostHope, hope));
}

}  // namespace aisp
