// DraftChooser: how many of the proposed tokens of each sequence a step verifies.
//
// Sequences compete for rows: all their tokens, the likeliest first, are added as long as the step
// brings more tokens in a second than without them. What a token is worth comes from the proposer's
// confidence, corrected by what became of such tokens before, of all sequences and of this one.
// A token that got no row is judged too, when the one in front of it stood: so the estimates stay
// fresh while nothing is verified. Plain values; one thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/proposer.h"
#include "speculation/verify_cost.h"

namespace aisp {

// What became of the proposed tokens of one sequence, by position in the draft.
struct AcceptanceRecord {
  static constexpr size_t kPositions = 8;  // the last one stands for those behind it
  std::array<float, kPositions> hits{}, expected{};
};

class Acceptance {
 public:
  // That the token at `position` of a draft stands, given that those before it do.
  float Probability(const AcceptanceRecord& record, size_t position, float confidence) const;
  void Learn(AcceptanceRecord* record, size_t position, float confidence, bool stood);

 private:
  static constexpr size_t kBins = 12;
  static size_t BinOf(float confidence);
  struct Bin {
    float hits = 0, seen = 0;
  };
  float Calibrated(float confidence) const;
  std::array<Bin, kBins> bins_{};
};

// The rest of the step that a draft would join.
struct VerifyStep {
  int32_t rows = 0;       // without drafts
  int32_t sequences = 0;  // that draw a token
  int64_t context_tokens = 0;
  int32_t max_drafts = 0;    // rows that may be added
  double spent_seconds = 0;  // on proposals, whatever is verified of them
};

// A token with a row is worth `probability` that it and all before it stand.
struct DraftCandidate {
  int32_t sequence = 0;
  int32_t position = 0;
  double probability = 0;
};

// Which tokens are worth most, likeliest first; and none in front of one that it follows.
bool GoesBefore(const DraftCandidate& a, const DraftCandidate& b);

// How many of `candidates`, sorted by GoesBefore, make a step worth most; 0 where none does.
int32_t ChooseDrafts(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     const VerifyCost& cost);

// For proposers whose tokens cost time: the length of all drafts at which a step is worth most,
// when it verifies the likeliest of these candidates, sorted by GoesBefore, and drafts of
// all sequences, of n tokens each, cost `drafting[n - 1]` seconds; 0 where none pays.
int32_t ChooseLength(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     std::span<const double> drafting, const VerifyCost& cost);

}  // namespace aisp
