#include "tests/support/provenance_head.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/check.h"

namespace aisp {
namespace {

constexpr uint64_t kWrong = 0x5151515151515151u;

}  // namespace

ProvenanceHead::ProvenanceHead(const ProvenanceOptions& target,
                               const ProvenanceHeadOptions& options)
    : target_(target), options_(options) {
  layout_.num_layers = 1;
  layout_.num_kv_heads = 1;
  layout_.head_dim = 2;
  layout_.block_tokens = options.block_tokens;
  layout_.num_blocks = options.num_blocks;
  pool_.assign(static_cast<size_t>(options.num_blocks) * static_cast<size_t>(options.block_tokens),
               {kWrong, -7});
  // No more than must wait.
  constexpr int32_t kWaiting = 9;
  const int32_t each = std::min(kWaiting, options.max_rows / options.max_sequences);
  places_.assign(static_cast<size_t>(each * options.max_sequences) * feature_bytes(),
                 std::byte{0x55});
}

// Invalidates the rows placed by the previous call.
Status ProvenanceHead::PlaceFeatures(std::span<const std::span<const float>> runs,
                                     std::vector<std::span<const std::byte>>* placed) {
  if (!on_device()) return DraftHead::PlaceFeatures(runs, placed);
  for (std::vector<uint16_t>& rows : landings_) std::fill(rows.begin(), rows.end(), 0x5555);
  landings_.resize(static_cast<size_t>(options_.landings));
  placed->clear();
  for (size_t i = 0; i < runs.size(); ++i) {
    if (i >= landings_.size()) {
      placed->emplace_back();
      continue;
    }
    landings_[i].assign(runs[i].begin(), runs[i].end());
    placed->push_back(std::as_bytes(std::span(landings_[i])));
  }
  return {};
}

uint64_t ProvenanceHead::StateAt(const std::byte* features) const {
  std::array<float, kProvenanceFeatures> row{};
  for (size_t i = 0; i < row.size(); ++i) {
    row[i] = on_device() ? static_cast<float>(reinterpret_cast<const uint16_t*>(features)[i])
                         : reinterpret_cast<const float*>(features)[i];
  }
  return StateOf(row);
}

Status ProvenanceHead::KeepFeatures(std::span<const FeatureCopy> rows) {
  for (const FeatureCopy& row : rows) std::memcpy(row.to, row.from, feature_bytes());
  return {};
}

ProvenanceHead::Slot& ProvenanceHead::At(const HeadStep& step, const SequenceRows& rows,
                                         int32_t position) {
  const int32_t entry = rows.table_begin + position / options_.block_tokens;
  const int32_t block = step.batch.block_tables[static_cast<size_t>(entry)];
  const int32_t slot = block * options_.block_tokens + position % options_.block_tokens;
  return pool_.at(static_cast<size_t>(slot));
}

Status ProvenanceHead::Launch(const HeadStep& step) {
  const ForwardBatch& b = step.batch;
  const auto rows = static_cast<int32_t>(b.tokens.size());
  AISP_CHECK(rows > 0 && rows <= options_.max_rows);
  AISP_CHECK(static_cast<int32_t>(b.sequences.size()) <= options_.max_sequences);
  AISP_CHECK(step.samples.size() == b.logit_rows.size());
  if (fail) return Internal("the head's device is gone");
  rows_computed += b.tokens.size();
  longest_step = std::max(longest_step, rows);
  size_t at = 0;
  drawn_.clear();
  tokens_.clear();
  for (const SequenceRows& s : b.sequences) {
    AISP_CHECK(s.context_len <= options_.max_context);
    for (int32_t i = 0; i < s.num_rows; ++i) {
      const size_t row = static_cast<size_t>(s.row_begin) + static_cast<size_t>(i);
      AISP_CHECK(b.positions[row] == s.context_len - s.num_rows + i);
      const uint64_t state = step.features.empty()
                                 ? outputs_.at(static_cast<size_t>(step.goes_on[row]))
                                 : StateAt(step.features[row]);
      At(step, s, b.positions[row]) = {state, b.tokens[row]};
    }
    if (at == b.logit_rows.size() || b.logit_rows[at] >= s.row_begin + s.num_rows) continue;
    AISP_CHECK(b.logit_rows[at] == s.row_begin + s.num_rows - 1);
    tokens_.push_back(Draw(step, s, step.samples[at++]));
  }
  outputs_ = drawn_;
  return {};
}

// The tokens before the row: those of the request, then the draft tokens in the last rows.
SampledToken ProvenanceHead::Draw(const HeadStep& step, const SequenceRows& s,
                                  const SampleRow& row) {
  const auto size = static_cast<size_t>(row.position);
  std::vector<TokenId> tokens(row.prompt.begin(), row.prompt.end());
  tokens.insert(tokens.end(), row.generated.begin(), row.generated.end());
  AISP_CHECK(tokens.size() <= size);
  for (size_t left = size - tokens.size(); left > 0; --left)
    tokens.push_back(At(step, s, s.context_len - static_cast<int32_t>(left)).token);
  const std::vector<uint64_t> states = ExpectedStates(target_, tokens);
  const auto first = static_cast<int32_t>(size) - 1 - s.context_len;
  bool right = first >= 0;
  for (int32_t i = 0; right && i < s.context_len; ++i) {
    const Slot& slot = At(step, s, i);
    const size_t position = static_cast<size_t>(first) + static_cast<size_t>(i);
    right = slot.token == tokens[position + 1] && slot.state == states[position];
  }
  draws.emplace_back(row.position, s.context_len);
  longest_context = std::max(longest_context, s.context_len);
  shortest_context =
      shortest_context < 0 ? s.context_len : std::min(shortest_context, s.context_len);
  drawn_.push_back(right ? states.back() : kWrong);
  return ExpectedDraw(target_, drawn_.back(), row);
}

}  // namespace aisp
