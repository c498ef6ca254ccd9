// Results of an AsyncExecutor step besides drawn tokens: logits of rows with top tokens or scored
// tokens, hidden states, features.
#include <algorithm>
#include <utility>

#include "common/check.h"
#include "engine/async_executor.h"
#include "model/bf16.h"

namespace aisp {

Status AsyncExecutor::Grow(Buffer& buffer, size_t bytes) const {
  if (buffer.bytes() >= bytes) return {};
  buffer = {};
  AISP_ASSIGN_OR_RETURN(buffer, device_.Allocate(bytes, MemoryKind::kHost));
  return {};
}

Status AsyncExecutor::FetchResults(Flight& flight) {
  flight.fetches = false;
  AISP_RETURN_IF_ERROR(FetchLogits(flight));
  AISP_RETURN_IF_ERROR(FetchHidden(flight));
  AISP_RETURN_IF_ERROR(FetchFeatures(flight));
  return flight.fetches ? device_.Record(*flight.fetched, *stream_) : Status{};
}

// Rows of samples, then scored rows.
Status AsyncExecutor::FetchLogits(Flight& flight) {
  const std::span<const SampleRow> samples = flight.input.samples;
  size_t rows = flight.input.scored.size();
  for (size_t i = 0; i < samples.size(); ++i) rows += ReadsLogits(flight, i) ? 1 : 0;
  if (rows == 0) return {};
  flight.fetches = true;
  const TensorView logits = model_->logits();
  const auto row_bytes = static_cast<size_t>(logits.cols()) * sizeof(float);
  AISP_RETURN_IF_ERROR(Grow(flight.logits, rows * row_bytes));
  auto* to = static_cast<std::byte*>(flight.logits.data());
  const auto copy = [&](int32_t row) {
    const float* const from = logits.as<float>() + row * logits.cols();
    return device_.Copy(std::exchange(to, to + row_bytes), from, row_bytes, *stream_);
  };
  for (size_t i = 0; i < samples.size(); ++i) {
    if (ReadsLogits(flight, i)) AISP_RETURN_IF_ERROR(copy(LogitRowOf(flight, i)));
  }
  // Scored steps run no graph, so logits rows are exactly the requested ones.
  AISP_CHECK(flight.input.scored.empty() || flight.asked_rows.empty());
  for (const ScoredRow& row : flight.input.scored) AISP_RETURN_IF_ERROR(copy(row.logit_index));
  return {};
}

// Copied on the step's stream: the next step overwrites the device buffer.
Status AsyncExecutor::FetchHidden(Flight& flight) {
  const std::span<const int32_t> rows = flight.input.hidden_rows;
  if (rows.empty()) return {};
  flight.fetches = true;
  const size_t elements = rows.size() * static_cast<size_t>(hidden_size());
  AISP_RETURN_IF_ERROR(Grow(flight.hidden_rows, rows.size_bytes()));
  AISP_RETURN_IF_ERROR(Grow(flight.hidden, elements * sizeof(float)));
  auto* const locked = static_cast<int32_t*>(flight.hidden_rows.data());
  std::copy(rows.begin(), rows.end(), locked);
  return model_->HiddenStates({locked, rows.size()},
                              {static_cast<float*>(flight.hidden.data()), elements}, *stream_);
}

// Two steps in flight need this much page-locked memory each. A prefill step with more rows sends
// no features; the proposer does without.
int32_t AsyncExecutor::max_kept_features() const {
  constexpr size_t kMostBytes = size_t{16} << 20;
  const TensorView features = model_->features();
  if (features.cols() == 0) return 0;
  const size_t row = static_cast<size_t>(features.cols()) * DTypeBytes(features.dtype);
  return static_cast<int32_t>(
      std::min(static_cast<size_t>(max_batch_tokens()), std::max<size_t>(1, kMostBytes / row)));
}

Status AsyncExecutor::FetchFeatures(Flight& flight) {
  if (flight.input.kept_rows.empty()) return {};
  flight.fetches = true;
  return CopyFeatures(flight.input.kept_rows, flight.kept);
}

std::span<const float> AsyncExecutor::KeptFeatures(Flight& flight) const {
  const TensorView features = model_->features();
  const size_t count = flight.input.kept_rows.size() * static_cast<size_t>(features.cols());
  if (features.dtype == DType::kF32) return {static_cast<const float*>(flight.kept.data()), count};
  AISP_CHECK(features.dtype == DType::kBF16);
  if (flight.widened.size() < count) flight.widened.resize(count);
  WidenBf16({static_cast<const uint16_t*>(flight.kept.data()), count}, flight.widened.data());
  return std::span<const float>(flight.widened).first(count);
}

// Copied now: the next step overwrites them.
Status AsyncExecutor::CopyFeatures(std::span<const int32_t> rows, Buffer& to) {
  if (rows.empty()) return {};
  const TensorView features = model_->features();
  AISP_CHECK(feature_size() > 0);
  const size_t bytes = static_cast<size_t>(features.cols()) * DTypeBytes(features.dtype);
  AISP_CHECK(rows.size() * bytes <= to.bytes());
  ranges_.clear();
  for (size_t i = 0; i < rows.size(); ++i) {
    if (i > 0 && rows[i] == rows[i - 1] + 1) {
      ranges_.back().bytes += bytes;
    } else {
      ranges_.push_back({static_cast<size_t>(rows[i]) * bytes, i * bytes, bytes});
    }
  }
  return device_.CopyRanges(to.data(), features.data, ranges_, *stream_);
}

std::span<const float> AsyncExecutor::NextLogits(const Flight& flight,
                                                 size_t* logit_rows_read) const {
  const auto vocabulary = static_cast<size_t>(model_->spec().vocabulary);
  return {static_cast<const float*>(flight.logits.data()) + (*logit_rows_read)++ * vocabulary,
          vocabulary};
}

SampledToken AsyncExecutor::TokenOf(Flight& flight, size_t sample, size_t* logit_rows_read) {
  const SampleRow& row = flight.input.samples[sample];
  const DrawnToken& drawn = static_cast<const DrawnToken*>(drawn_.data())[DrawnAt(flight, sample)];
  SampledToken out;
  std::span<const float> logits;
  if (ReadsLogits(flight, sample)) logits = NextLogits(flight, logit_rows_read);
  if (!flight.refused[sample]) {
    out.status = flight.refused[sample];
  } else if (drawn.status == DrawStatus::kNotFinite) {
    out.status = tl::unexpected(NotFiniteError(row.position));
  } else if (drawn.status == DrawStatus::kNothingLeft) {
    out.status = tl::unexpected(NothingLeftError());
  } else {
    AISP_CHECK(drawn.token >= 0 && drawn.token < model_->spec().vocabulary);
    out.token = drawn.token;
    if (const auto mask = MaskOf(flight, sample); !logits.empty() && mask.empty()) {
      const auto own = static_cast<double>(logits[static_cast<size_t>(out.token)]);
      out.logprob = Sampler::Logprobs(logits, own - static_cast<double>(drawn.logprob), out.token,
                                      row.params->num_logprobs);
    } else if (!logits.empty()) {
      out.logprob = Sampler::LogprobsUnder(mask, logits, out.token, row.params->num_logprobs);
    } else if (row.params->num_logprobs == 0) {
      out.logprob = TokenLogprob{.logprob = drawn.logprob, .top = {}};
    }
  }
  return out;
}

void AsyncExecutor::ReadOutputs(Flight& flight, StepResult* result) {
  size_t logit_rows_read = 0;
  for (size_t i = 0; i < flight.input.samples.size(); ++i)
    result->tokens.push_back(TokenOf(flight, i, &logit_rows_read));
  for (const ScoredRow& row : flight.input.scored)
    result->scores.push_back(Sampler::Score(NextLogits(flight, &logit_rows_read), row));
  const auto* const hidden = static_cast<const float*>(flight.hidden.data());
  const size_t elements = flight.input.hidden_rows.size() * static_cast<size_t>(hidden_size());
  result->hidden.assign(hidden, hidden + elements);
  if (const size_t rows = flight.input.feature_rows.size(); rows > 0) {
    const TensorView features = model_->features();
    const size_t bytes = static_cast<size_t>(features.cols()) * DTypeBytes(features.dtype);
    result->device_features = {static_cast<const std::byte*>(flight.features.data()), rows * bytes};
    result->kept_features = KeptFeatures(flight);
  }
}

}  // namespace aisp
