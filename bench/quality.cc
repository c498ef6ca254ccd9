#include "bench/quality.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

namespace aisp {
namespace {

// -log softmax(logits)[token], in f64.
Result<double> NllOf(std::span<const float> logits, TokenId token) {
  const double most = *std::max_element(logits.begin(), logits.end());
  double sum = 0;
  for (const float v : logits) sum += std::exp(v - most);
  const double nll = std::log(sum) + most - logits[static_cast<size_t>(token)];
  if (!std::isfinite(nll)) return Internal("the model's logits are not finite");
  return nll;
}

class Scorer {
 public:
  Scorer(int32_t rows, ServingExecutor& executor, Device& device)
      : rows_(rows), executor_(executor), device_(device) {}

  // A text of at most the context's length; adds to `result`.
  Status Score(std::span<const TokenId> window, QualityResult* result) {
    const auto length = static_cast<int32_t>(window.size());
    std::vector<int32_t> table(static_cast<size_t>(executor_.kv_layout().BlocksFor(length)));
    std::iota(table.begin(), table.end(), 0);
    for (int32_t done = 0; done < length; done += rows_) {
      const int32_t count = std::min(rows_, length - done);
      AISP_RETURN_IF_ERROR(Step(window, done, count, table));
      // The last token of the text predicts nothing.
      const int32_t scored = std::min(count, length - 1 - done);
      AISP_RETURN_IF_ERROR(ReadLogits(scored));
      const auto width = static_cast<size_t>(executor_.logits().cols());
      for (int32_t i = 0; i < scored; ++i) {
        const std::span<const float> row(&logits_[static_cast<size_t>(i) * width], width);
        AISP_ASSIGN_OR_RETURN(const double nll,
                              NllOf(row, window[static_cast<size_t>(done + i + 1)]));
        sum_ += nll;
        result->likeliest.push_back(
            static_cast<TokenId>(std::max_element(row.begin(), row.end()) - row.begin()));
      }
      result->scored += scored;
    }
    result->tokens += length;
    result->mean_nll = sum_ / static_cast<double>(std::max<int64_t>(result->scored, 1));
    return {};
  }

 private:
  Status Step(std::span<const TokenId> window, int32_t begin, int32_t count,
              std::span<const int32_t> table) {
    std::vector<int32_t> positions(static_cast<size_t>(count)), indices(positions.size());
    std::iota(positions.begin(), positions.end(), begin);
    std::iota(indices.begin(), indices.end(), 0);
    const std::vector<int32_t> slots(positions.size(), 0);
    const SequenceRows rows[] = {{0, count, begin + count, 0}};
    StepInput input;
    input.step = ++step_;
    input.batch = {window.subspan(static_cast<size_t>(begin), positions.size()),
                   positions,
                   slots,
                   rows,
                   table,
                   indices};
    AISP_ASSIGN_OR_RETURN(const Ticket ticket, executor_.Launch(input));
    AISP_RETURN_IF_ERROR(executor_.Collect(ticket));
    return {};
  }

  Status ReadLogits(int32_t rows) {
    const TensorView logits = executor_.logits();
    logits_.resize(static_cast<size_t>(std::max(rows, 1)) * static_cast<size_t>(logits.cols()));
    if (rows <= 0) return {};
    if (!stream_) {
      AISP_ASSIGN_OR_RETURN(stream_, device_.CreateStream());
    }
    AISP_RETURN_IF_ERROR(
        device_.Copy(logits_.data(), logits.data, logits_.size() * sizeof(float), *stream_));
    return device_.Synchronize(*stream_);
  }

  const int32_t rows_;
  ServingExecutor& executor_;
  Device& device_;
  std::unique_ptr<Stream> stream_;
  std::vector<float> logits_;
  double sum_ = 0;
  uint64_t step_ = 0;
};

}  // namespace

double Agreement(const QualityResult& a, const QualityResult& b) {
  const size_t count = std::min(a.likeliest.size(), b.likeliest.size());
  if (count == 0) return 0;
  size_t equal = 0;
  for (size_t i = 0; i < count; ++i) equal += a.likeliest[i] == b.likeliest[i] ? 1 : 0;
  return static_cast<double>(equal) / static_cast<double>(count);
}

Result<QualityResult> MeasureQuality(std::span<const std::vector<TokenId>> texts, int32_t rows,
                                     ServingExecutor& executor, Device& device) {
  if (rows < 1 || rows > std::min(executor.max_slots(), executor.max_batch_tokens())) {
    return InvalidArgument(
        fmt::format("{} rows a step; 1 to {} are possible", rows,
                    std::min(executor.max_slots(), executor.max_batch_tokens())));
  }
  const KvLayout& kv = executor.kv_layout();
  const auto window = static_cast<size_t>(
      std::min<int64_t>(executor.max_context(), int64_t{kv.num_blocks} * kv.block_tokens));
  QualityResult result;
  Scorer scorer(rows, executor, device);
  for (const std::vector<TokenId>& text : texts) {
    const std::span<const TokenId> tokens = text;
    for (size_t at = 0; at < tokens.size(); at += window) {
      AISP_RETURN_IF_ERROR(
          scorer.Score(tokens.subspan(at, std::min(window, tokens.size() - at)), &result));
    }
  }
  if (result.scored == 0) return InvalidArgument("the text has fewer than two tokens to score");
  return result;
}

}  // namespace aisp
