#include "simulate/bound.h"

#include <algorithm>
#include <array>
#include <span>
#include <unordered_map>

#include "common/hash.h"
#include "common/prompt_work.h"

namespace aisp::simulate {
namespace {

// Leading tokens of a prompt that are cached if all earlier prompts are.
class Seen {
 public:
  int64_t Cached(const loadgen::WorkItem& item) {
    uint64_t before = 0;
    int64_t cached = 0;
    bool all = true;
    for (const loadgen::PromptPart& part : item.parts) {
      // A shorter part with the same seed is a prefix of a longer one.
      int64_t& longest = longest_[Chain(before, part.seed)];
      if (all) cached += std::min(part.tokens, longest);
      all = all && part.tokens <= longest;
      longest = std::max(longest, part.tokens);
      before = Chain(Chain(before, part.seed), static_cast<uint64_t>(part.tokens));
    }
    // The last token is always computed.
    return std::min(cached, item.input_tokens - 1);
  }

 private:
  static uint64_t Chain(uint64_t before, uint64_t next) {
    const std::array<uint64_t, 2> both = {before, next};
    return Hash64(std::as_bytes(std::span(both)), 0);
  }
  std::unordered_map<uint64_t, int64_t> longest_;
};

// Time in ms that the item costs a worker whose steps are always full.
double LeastMs(const WorkerProfile& p, int64_t cached, const loadgen::WorkItem& item) {
  const int64_t left = std::max<int64_t>(1, item.input_tokens - cached);
  const PromptWork work = PromptWork::Of(cached, left);
  const auto& prompt = p.cost.prefill;
  const auto& decode = p.cost.decode;
  const auto more = static_cast<double>(std::max<int64_t>(0, item.output_tokens - 1));
  const double read = more * static_cast<double>(item.input_tokens) + more * (more + 1) / 2;
  return prompt.base_ms * static_cast<double>(left) / p.max_batch_tokens +
         prompt.per_token_ms * static_cast<double>(left) +
         prompt.per_prefill_context_ms * static_cast<double>(work.context) +
         more * (decode.base_ms / p.max_running + decode.per_row_ms) + decode.per_context_ms * read;
}

}  // namespace

double WorkConservingRate(const std::vector<Fleet>& fleets,
                          const std::vector<loadgen::WorkItem>& items) {
  std::vector<double> ms(fleets.size(), 0);
  Seen seen;
  for (const loadgen::WorkItem& item : items) {
    const int64_t cached = seen.Cached(item);
    for (size_t f = 0; f < fleets.size(); ++f) ms[f] += LeastMs(fleets[f].profile, cached, item);
  }
  // Workers of several kinds share the work so that all are busy until the end.
  double rate = 0;
  for (size_t f = 0; f < fleets.size(); ++f) {
    const double workers = fleets[f].prefill + fleets[f].decode;
    if (ms[f] > 0) rate += 1e3 * workers * static_cast<double>(items.size()) / ms[f];
  }
  return rate;
}

}  // namespace aisp::simulate
