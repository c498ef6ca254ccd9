#include "common/token_limits.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace aisp {
namespace {

// Of the TPOT limit; the rest is for steps that take longer than predicted.
constexpr double kKept = 0.97;
// A prompt that waits must have so many steps with prefill left.
constexpr double kSoon = 1.5;
// Of what a stream could make up for in later steps without prefill; the rest is for prompts that
// come later.
constexpr double kLent = 0.5;
// A prompt that no TTFT protects waits for at most so many steps' time with prefill.
constexpr double kMostHeld = 10;

}  // namespace

void PrefillTurn::Begin(const StepCost& cost, const StepShape& decodes, int32_t tokens) {
  cost_ = cost;
  decodes_ = decodes;
  tokens_ = tokens;
  plain_ms_ = cost.StepMs(decodes);
  streams_.clear();
  prompts_.clear();
  queued_ = first_ = {};
}

void PrefillTurn::AddStream(const TokenLimits& limits, double since_first_ms, int32_t emitted,
                            int32_t most) {
  if (limits.token_ms <= 0) return;
  const int32_t tokens = std::max(std::min(limits.answer_tokens, most), emitted + 1);
  streams_.push_back({since_first_ms, kKept * limits.token_ms, static_cast<double>(emitted),
                      static_cast<double>(tokens - emitted)});
}

void PrefillTurn::AddPrompt(const TokenLimits& limits, double waited_ms, int32_t begin,
                            int32_t tokens) {
  first_ += PromptWork::Of(begin, std::min<int64_t>(tokens, tokens_ - first_.tokens));
  queued_ += PromptWork::Of(begin, tokens);
  const double ahead_ms = cost_.PromptMs(queued_, tokens_, decodes_);
  const double left_ms = limits.first_token_ms > 0 ? limits.first_token_ms - waited_ms - ahead_ms
                                                   : std::numeric_limits<double>::infinity();
  prompts_.push_back({left_ms, begin, tokens});
}

int64_t PrefillTurn::Late(double added_ms, bool borrows) const {
  return std::count_if(streams_.begin(), streams_.end(), [&](const Stream& s) {
    const double later = borrows ? std::max(1.0, kLent * s.to_come) : 1;
    // So many gaps between tokens then.
    const double gaps = s.emitted - 1 + later;
    const double spare_ms = s.limit_ms * gaps - s.spent_ms - later * plain_ms_;
    return spare_ms >= 0 && spare_ms < added_ms;
  });
}

int64_t PrefillTurn::Soon(double ms) const {
  return std::count_if(prompts_.begin(), prompts_.end(),
                       [ms](const Prompt& p) { return p.left_ms >= 0 && p.left_ms < ms; });
}

int32_t PrefillTurn::RowsWithin(double ms) const {
  const double each = cost_.prefill.per_token_ms, read = cost_.prefill.per_prefill_context_ms;
  double rows = 0;
  for (const Prompt& p : prompts_) {
    // Solves (each + read * begin) n + read * n * n / 2 = ms for n.
    const double linear = each + read * p.begin;
    if (linear <= 0) return tokens_;
    const double fit =
        read > 0 ? (std::sqrt(linear * linear + 2 * read * ms) - linear) / read : ms / linear;
    const double n = std::min<double>(p.tokens, fit);
    rows += n;
    ms -= n * linear + read * n * n / 2;
    if (n < p.tokens || rows >= tokens_) break;
  }
  return static_cast<int32_t>(std::clamp<double>(rows, 0, tokens_));
}

bool PrefillTurn::Unprotected() const {
  return std::any_of(prompts_.begin(), prompts_.end(),
                     [](const Prompt& p) { return p.left_ms < 0 || std::isinf(p.left_ms); });
}

int32_t PrefillTurn::Tokens() {
  const int32_t rows = prompts_.empty() ? tokens_ : Weighed();
  if (rows > 0 || !Unprotected()) {
    held_ms_ = 0;
    return rows;
  }
  held_ms_ += plain_ms_;
  if (held_ms_ < kMostHeld * WholeMs()) return 0;
  held_ms_ = 0;
  return tokens_;
}

double PrefillTurn::WholeMs() const {
  StepShape with = decodes_;
  with.prefill_tokens = static_cast<double>(first_.tokens);
  with.prefill_context = static_cast<double>(first_.context);
  return cost_.StepMs(with);
}

int32_t PrefillTurn::Weighed() const {
  if (streams_.empty()) return tokens_;
  const double whole_ms = WholeMs();
  const StepCost::Prefill& cost = cost_.prefill;
  const double fixed_ms = cost.base_ms + cost.per_row_ms * decodes_.decode_rows +
                          cost.per_context_ms * decodes_.decode_context;
  const bool small_is_cheap = fixed_ms < plain_ms_;
  const int64_t soon = Soon(kSoon * whole_ms);
  if (Late(whole_ms - plain_ms_, /*borrows=*/!small_is_cheap) <= soon) return tokens_;
  if (!small_is_cheap) return 0;
  const auto shortest =
      std::min_element(streams_.begin(), streams_.end(),
                       [](const Stream& a, const Stream& b) { return a.limit_ms < b.limit_ms; });
  const double limit_ms = shortest->limit_ms;
  if (Late(limit_ms - plain_ms_, /*borrows=*/true) > soon) return 0;
  return RowsWithin(std::max(0.0, limit_ms - fixed_ms));
}

}  // namespace aisp
