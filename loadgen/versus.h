// Two servers, A and B, get the same prompts in alternating order (A B, B A, A B, ...), so that
// drift of the machine affects both. The result is the ratio per round, not of the two averages.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/session.h"

namespace aisp::loadgen {

struct VersusRow {
  std::string name;
  bool more_is_better = true;
  double a = 0;  // mean over the rounds
  double b = 0;
  double ratio = 0;  // B / A, geometric mean over the rounds
  double low = 0;    // lowest and highest ratio of a round
  double high = 0;
  size_t rounds = 0;    // with a value from both
  size_t b_better = 0;  // rounds
};

struct VersusResult {
  std::string name_a, name_b;  // URLs
  std::vector<Outcome> a, b;   // by round
  std::vector<VersusRow> rows;
  bool interrupted = false;
};

Result<VersusResult> RunVersus(Session* a, Session* b, const Options& of_a, const Options& of_b);

// Pure.
std::vector<VersusRow> CompareRounds(const Options& options, const std::vector<Outcome>& a,
                                     const std::vector<Outcome>& b);
std::string VersusTable(const Options& options, const VersusResult& versus);
std::string VersusJson(const Options& options, const VersusResult& versus);

}  // namespace aisp::loadgen
