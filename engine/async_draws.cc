// How a step of AsyncExecutor draws, and its uploads: one draw row per token, and logit edits.
#include <fmt/format.h>

#include <algorithm>

#include "common/check.h"
#include "engine/async_executor.h"

namespace aisp {
AsyncExecutor::Drawing AsyncExecutor::DrawingFor(const StepInput& input,
                                                 const GraphSize& size) const {
  Drawing drawing;
  drawing.rows = static_cast<int32_t>(input.samples.size());
  if (drawing.rows > 0) drawing.rows = std::max(drawing.rows, size.rows);
  drawing.filters = std::any_of(input.samples.begin(), input.samples.end(), FiltersTokens);
  // The buffer set that the last step does not read, if there are graphs for both.
  if (size.rows > 0 && graphs_.at(size)[1].plain != nullptr) drawing.place = 1 - place_;
  return drawing;
}

size_t AsyncExecutor::MaxEdits() const {
  constexpr size_t kMostEdits = size_t{1} << 20;
  return std::min(kMostEdits, static_cast<size_t>(max_draws()) *
                                  static_cast<size_t>(model_->spec().vocabulary));
}

void AsyncExecutor::PlaceMask(const SampleRow& sample, Flight& flight, DrawRow* draw,
                              int32_t* masks) const {
  if (sample.mask.empty()) return;
  AISP_CHECK(sample.mask.size() == MaskWords());
  draw->mask = (*masks)++;
  auto* const to = static_cast<uint32_t*>(flight.mask_staging.data()) +
                   static_cast<size_t>(draw->mask) * MaskWords();
  std::copy(sample.mask.begin(), sample.mask.end(), to);
}

std::span<const uint32_t> AsyncExecutor::MaskOf(const Flight& flight, size_t sample) const {
  const int32_t mask = static_cast<const DrawRow*>(flight.draw_staging.data())[sample].mask;
  if (mask < 0) return {};
  const auto* const masks = static_cast<const uint32_t*>(flight.mask_staging.data());
  return {masks + static_cast<size_t>(mask) * MaskWords(), MaskWords()};
}

// The device computes only the drawn token's logprob, over all tokens.
bool AsyncExecutor::ReadsLogits(const Flight& flight, size_t sample) const {
  const int32_t logprobs = flight.input.samples[sample].params->num_logprobs;
  return logprobs > 0 || (logprobs == 0 && !MaskOf(flight, sample).empty());
}

// Uploads the draw rows, with padding.
Status AsyncExecutor::UploadDraws(Flight& flight, const Drawing& drawing, Stream& stream) {
  const Buffer& target = draw_rows_[static_cast<size_t>(drawing.place)];
  const std::span<const SampleRow> samples = flight.input.samples;
  auto* draws = static_cast<DrawRow*>(flight.draw_staging.data());
  const size_t first = FirstEdit(static_cast<size_t>(drawing.rows));
  const std::span<TokenEdit> room(static_cast<TokenEdit*>(flight.draw_staging.data()) + first,
                                  MaxEdits());
  size_t used = 0;
  int32_t masks = 0;
  flight.refused.assign(samples.size(), Status{});
  for (size_t i = 0; i < samples.size(); ++i) {
    const SampleRow& sample = samples[i];
    AISP_CHECK(sample.slot >= 0 && sample.slot < options_.base.max_slots);
    draws[i] = DrawRowOf(sample);
    draws[i].logit_index = LogitRowOf(flight, i);
    draws[i].drawn_at = static_cast<int32_t>(DrawnAt(flight, i));
    PlaceMask(sample, flight, &draws[i], &masks);
    if (!EditsLogits(sample)) continue;
    const size_t begin = used;
    if (!edits_->Append(sample, room, &used)) {
      used = begin;
      draws[i].logit_index = -1;
      flight.refused[i] = ResourceExhausted(fmt::format(
          "the penalties and biases of a step name more than {} tokens; send fewer such requests "
          "at once",
          room.size()));
    }
    draws[i].edit_begin = static_cast<int32_t>(first + begin);
    draws[i].edit_count = static_cast<int32_t>(used - begin);
  }
  for (size_t i = samples.size(); i < static_cast<size_t>(drawing.rows); ++i) {
    draws[i] = DrawRow{};
    draws[i].logit_index = -1;
  }
  AISP_RETURN_IF_ERROR(device_.Upload(target.data(), draws,
                                      DrawBytes(static_cast<size_t>(drawing.rows), used), stream));
  // Masks are rare, so they have only one buffer.
  if (masks == 0) return {};
  return device_.Copy(draw_masks_.data(), flight.mask_staging.data(),
                      static_cast<size_t>(masks) * MaskWords() * sizeof(uint32_t), *stream_);
}

}  // namespace aisp
