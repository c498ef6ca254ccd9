// VerifyCost: how long a step of so many rows takes, learnt from those that were seen.
//
// Time over rows is a table of knots; what they say fades while nobody looks, for a machine
// changes. Between knots that are known and behind them lines go on, and one that was hardly seen
// counts half as much as they. The noisier the samples, the more of them a knot wants before it is
// believed against its neighbours. All knots share a level, so that a machine which became slower
// for one is slower for all. So is what the tokens of context that a row reads add to it.
//
// A device that runs captured graphs pads steps to a few sizes, which cost the same for any rows
// inside; steps without drafts are launched ahead there and have knots of their own. Plain values;
// one thread.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/clock.h"

namespace aisp {

class VerifyCost {
 public:
  // Steps of any number of rows.
  VerifyCost();
  // Steps are padded to `sizes`, ascending; larger ones are not. Forgets what was seen.
  void PadTo(std::span<const int32_t> sizes);

  // `drafts` of the rows verify a proposed token.
  void Add(int32_t rows, int32_t drafts, int64_t context_tokens, Duration took);
  // In seconds; 1 for a step of one row when nothing has been seen.
  double Predict(int32_t rows, int32_t drafts, int64_t context_tokens) const;
  // The same, less what it may be too much by: the less was seen of such steps, the more. Who
  // chooses by this tries what might be best, and no longer than until it knows better.
  double Hopeful(int32_t rows, int32_t drafts, int64_t context_tokens) const;
  // The most rows that share a knot with `rows`: sizes of steps that hardly differ are not told
  // apart.
  int32_t LastLike(int32_t rows) const;
  int64_t samples() const { return samples_; }
  // The variance of samples, relative to what was expected.
  double noise() const { return noise_; }

 private:
  struct Knot {
    double seconds = 0, rows = 0, context = 0;  // means; seconds at level 1
    double seen = 0;                            // samples that the means stand for, at `last`
    int64_t last = 0;
  };
  struct Point {
    double rows = 0, seconds = 0;
  };
  struct Line {
    double rows = 0, seconds = 0;  // a point of it
    double slope = 0;              // seconds a row
  };
  struct Kind {
    size_t begin = 0, end = 0;
  };
  struct Place {
    size_t knot = 0;
    double rows = 0;  // where the step lies on the line: those that it is padded to
  };
  Place PlaceOf(int32_t rows, int32_t drafts) const;
  // Lets what was learnt long ago count for less.
  void Fade();
  void NoteNoise(double of_expected);
  void Learn(Knot* at, double seen, double rows, double context, double seconds);
  double SecondsAt(const Knot& knot, double context) const;
  // By what part of its time a step becomes longer when its rows read twice the context.
  double Elasticity() const;
  // Knots whose lines go on to `knot`.
  Kind KindOf(size_t knot) const;
  Line LineThroughAll(Kind kind, double context) const;
  double Smoothed(size_t knot, double context, const Line& line) const;
  // From the knots but `but`; 0 where there is none.
  double AlongOthers(double rows, double context, size_t but) const;
  double OfRows(const Place& place, double context) const;

  std::vector<int32_t> ends_;  // ascending: the most rows of each knot
  bool padded_ = false;        // then as many knots of plain steps follow
  std::vector<Knot> knots_;
  std::vector<double> seen_;
  double level_ = 1;
  double noise_ = 0.0025;             // variance of samples, relative to what was expected
  double last_off_ = 1;               // the last sample, of what was expected
  double drift_ = 0;                  // mean of what the last samples were longer than expected
  double together_ = 0, spread_ = 0;  // covariance of time and context in a knot, and variance
  int64_t samples_ = 0;
};

}  // namespace aisp
