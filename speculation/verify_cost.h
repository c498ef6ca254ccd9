// VerifyCost: the time of a step by its number of rows, learnt from measured steps.
//
// A table of knots over rows. Samples lose weight with age, because machines change. Between and
// beyond known knots the time is interpolated linearly; a knot with few samples is averaged with
// that line, the more so the noisier samples are. All knots share a level, so that a machine that
// slows down for one knot is slower for all, and share the cost of the context tokens that a row
// reads.
//
// A device with captured graphs pads steps to a few sizes, each with one cost; its steps without
// drafts are launched ahead and have their own knots. Plain values; one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"

namespace aisp {

class VerifyCost {
 public:
  // Without padding.
  VerifyCost();
  // Steps are padded to `sizes`, ascending; larger steps are not. Forgets all samples.
  void PadTo(std::span<const int32_t> sizes);

  // `drafts` of the rows verify a draft token.
  void Add(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took);
  // Predicted seconds; 1 for a step of one row before any sample.
  double Predict(int32_t rows, int32_t drafts, int64_t context_tokens) const;
  // A lower estimate in seconds: the fewer samples of such steps, the lower. A chooser that uses it
  // tries steps that may be best, until their cost is known.
  double LowerEstimate(int32_t rows, int32_t drafts, int64_t context_tokens) const;
  // The largest number of rows with the same knot as `rows`; such steps are not distinguished.
  int32_t LastLike(int32_t rows) const;
  int64_t samples() const { return samples_; }
  // Variance of samples relative to the prediction.
  double noise() const { return noise_; }

 private:
  struct Knot {
    double seconds = 0, rows = 0, context = 0;  // means; seconds at level 1
    double seen = 0;                            // weight of the means in samples, at `last`
    int64_t last = 0;
  };
  struct Point {
    double rows = 0, seconds = 0;
  };
  struct Line {
    double rows = 0, seconds = 0;  // a point on the line
    double slope = 0;              // seconds per row
  };
  struct Kind {
    size_t begin = 0, end = 0;
  };
  struct Place {
    size_t knot = 0;
    double rows = 0;  // rows on the line: the padded size
  };
  Place PlaceOf(int32_t rows, int32_t drafts) const;
  // Reduces the weight of old samples.
  void Decay();
  void NoteNoise(double of_expected);
  void Learn(Knot* at, double seen, double rows, double context, double seconds);
  double SecondsAt(const Knot& knot, double context) const;
  // Relative increase of step time when rows read twice the context.
  double Elasticity() const;
  // The knots used to extrapolate to `knot`.
  Kind KindOf(size_t knot) const;
  Line LineThroughAll(Kind kind, double context) const;
  double Smoothed(size_t knot, double context, const Line& line) const;
  // Predicted from all knots except `but`; 0: no such knot.
  double AlongOthers(double rows, double context, size_t but) const;
  double OfRows(const Place& place, double context) const;

  std::vector<int32_t> ends_;  // ascending: largest number of rows of each knot
  bool padded_ = false;        // then the same number of knots for steps without drafts follow
  std::vector<Knot> knots_;
  std::vector<double> seen_;
  double level_ = 1;
  double noise_ = 0.0025;             // variance of samples relative to the prediction
  double last_off_ = 1;               // last sample relative to the prediction
  double drift_ = 0;                  // mean excess of recent samples over the prediction
  double together_ = 0, spread_ = 0;  // within knots: covariance of time and context, variance
  int64_t samples_ = 0;
};

}  // namespace aisp
