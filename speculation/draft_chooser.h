// DraftChooser: how many draft tokens of each sequence a step verifies.
//
// Sequences compete for rows. Draft tokens are added in order of probability while they raise the
// expected tokens per second. The probability of a token is the proposer's confidence, corrected by
// the acceptance rate of all sequences and of this one. A token without a row is judged too if the
// one before it was accepted, so estimates stay fresh while nothing is verified. Plain values; one
// thread.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "speculation/proposer.h"
#include "speculation/verify_cost.h"

namespace aisp {

// Acceptance of one sequence's draft tokens, by position in the draft.
struct AcceptanceRecord {
  static constexpr size_t kPositions = 8;  // the last one also covers all later positions
  std::array<float, kPositions> hits{}, expected{};
};

class Acceptance {
 public:
  // Probability that the draft token at `position` is accepted, given that those before it are.
  float Probability(const AcceptanceRecord& record, size_t position, float confidence) const;
  void Learn(AcceptanceRecord* record, size_t position, float confidence, bool accepted);

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
  int32_t rows = 0;       // without draft rows
  int32_t sequences = 0;  // that draw a token
  int64_t context_tokens = 0;
  int32_t max_drafts = 0;    // draft rows that may be added
  double spent_seconds = 0;  // on drafting, however many tokens are verified
};

// `probability`: that this token and all before it in its draft are accepted.
struct DraftCandidate {
  int32_t sequence = 0;
  int32_t position = 0;
  double probability = 0;
};

// Order by probability, highest first; tokens of one draft stay in order.
bool GoesBefore(const DraftCandidate& a, const DraftCandidate& b);

// How many of `candidates`, sorted by GoesBefore, maximise tokens per second; 0: none helps.
int32_t ChooseDrafts(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     const VerifyCost& cost);

// For costly proposers: the draft length, common to all sequences, that maximises tokens per second
// if the step verifies the likeliest candidates. `candidates`: sorted by GoesBefore. `drafting[n -
// 1]`: seconds to draft n tokens for all sequences. 0: none helps.
int32_t ChooseLength(std::span<const DraftCandidate> candidates, const VerifyStep& shape,
                     std::span<const double> drafting, const VerifyCost& cost);

}  // namespace aisp
