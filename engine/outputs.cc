// Outputs of prompt rows: logprobs of tokens and pooled hidden states. A preempted sequence
// computes its rows again; outputs already given are not repeated.
#include <algorithm>
#include <cmath>
#include <utility>

#include "engine/engine_impl.h"

namespace aisp {

void Engine::Impl::AppendOutputs(const Sequence& s, const SequenceRows& rows, StepRecord& step,
                                 StepRecord::Entry* entry) {
  const int32_t begin = rows.context_len - rows.num_rows;
  const int32_t end = rows.context_len;
  const auto row_of = [&](int32_t position) { return rows.row_begin + position - begin; };
  if (s.scores()) {
    const int32_t first = std::max(begin, s.scored - 1);
    const int32_t last = std::min(end, s.request.prompt_tokens - 1);
    for (int32_t p = first; p < last; ++p) {
      step.scored.push_back({.logit_index = static_cast<int32_t>(step.logit_rows.size()),
                             .token = s.request.tokens[static_cast<size_t>(p) + 1],
                             .num_top = s.request.prompt_logprobs,
                             .position = static_cast<uint32_t>(p) + 1});
      step.logit_rows.push_back(row_of(p));
      ++entry->scored;
    }
  }
  int32_t first = begin;
  int32_t last = end;
  switch (s.request.pooling) {
    case Pooling::kNone:
      return;
    case Pooling::kMean:
      break;
    case Pooling::kFirst:
      last = std::min(end, 1);
      break;
    case Pooling::kLast:
      first = std::max(begin, s.size() - 1);
      break;
  }
  for (int32_t p = first; p < last; ++p) {
    step.hidden_rows.push_back(row_of(p));
    ++entry->hidden;
  }
}

bool Engine::Impl::AbsorbScores(Sequence& s, std::span<RowScore> scores, CollectOutput* out) {
  TokenOutput output;
  output.sequence = s.id;
  output.position = s.size();
  output.preemptions = s.times.preemptions;
  output.prompt_logprobs_from = s.scored;
  for (RowScore& score : scores) {
    if (!score.status) {
      output.finish = FinishReason::kError;
      output.fault = FaultOf(score.status.error().code);
      if (score.status.error().code == Code::kInternal) ForgetSourceBlocks(s);
      output.error = std::move(score.status).error();
      break;
    }
    output.prompt_logprobs.push_back(std::move(score.logprob));
    ++s.scored;
  }
  const bool ends = output.finish != FinishReason::kNone;
  out->tokens.push_back(std::move(output));
  if (ends) End(s);
  return !ends;
}

// Summed row by row, so that the result does not depend on the chunks.
void Engine::Impl::AbsorbHidden(Sequence& s, const float* hidden, int32_t rows) {
  const auto size = static_cast<size_t>(executor->hidden_size());
  s.pooled.resize(size);
  for (int32_t row = 0; row < rows; ++row, hidden += size) {
    for (size_t i = 0; i < size; ++i) s.pooled[i] += static_cast<double>(hidden[i]);
  }
}

void Engine::Impl::FinishOutputs(Sequence& s, Instant now, CollectOutput* out) {
  s.times.first_token = now;
  if (s.times.prefill_done == kNever) s.times.prefill_done = now;
  TokenOutput output;
  output.sequence = s.id;
  output.position = s.size();
  output.preemptions = s.times.preemptions;
  output.finish = s.request.pooling == Pooling::kNone ? FinishReason::kLength : FinishReason::kStop;
  if (s.request.pooling != Pooling::kNone) {
    // Of norm 1: the sum has the direction of the mean.
    double square = 0;
    for (const double x : s.pooled) square += x * x;
    const double norm = std::sqrt(square);
    if (!std::isfinite(norm) || norm == 0) {
      ForgetSourceBlocks(s);
      output.finish = FinishReason::kError;
      output.error = {Code::kInternal,
                      "the model's hidden states for this input are not finite, or all zero"};
    } else {
      output.embedding.reserve(s.pooled.size());
      for (const double x : s.pooled) output.embedding.push_back(static_cast<float>(x / norm));
    }
  }
  out->tokens.push_back(std::move(output));
  End(s);
}

}  // namespace aisp
