#include "engine/draft_draws.h"

#include <algorithm>

#include "common/check.h"
#include "engine/sampler.h"

namespace aisp {

Result<std::unique_ptr<DraftDraws>> DraftDraws::Create(const DraftDrawsOptions& options,
                                                       Device& device) {
  AISP_CHECK(options.rows > 0 && options.places > 0);
  std::unique_ptr<DraftDraws> made(new DraftDraws(options, device));
  AISP_RETURN_IF_ERROR(made->Allocate());
  return made;
}

size_t DraftDraws::MaxEdits() const {
  constexpr size_t kMostEdits = size_t{1} << 20;
  return std::min(kMostEdits,
                  static_cast<size_t>(options_.rows) * static_cast<size_t>(options_.vocabulary));
}

Status DraftDraws::Allocate() {
  const auto draws = static_cast<size_t>(options_.rows);
  const size_t rows = DrawBytes(draws, MaxEdits());
  const size_t masks = draws * MaskWords() * sizeof(uint32_t);
  const auto on_device = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kDevice); };
  const auto on_host = [&](size_t bytes) { return device_.Allocate(bytes, MemoryKind::kHost); };
  places_.resize(options_.places);
  for (Place& place : places_) {
    AISP_ASSIGN_OR_RETURN(place.rows, on_device(rows));
    AISP_ASSIGN_OR_RETURN(place.staging, on_host(rows));
    AISP_ASSIGN_OR_RETURN(place.mask_staging, on_host(masks));
    AISP_ASSIGN_OR_RETURN(place.done, device_.CreateEvent());
  }
  AISP_ASSIGN_OR_RETURN(draw_masks_, on_device(masks));
  AISP_ASSIGN_OR_RETURN(drawn_, on_host(options_.places * draws * sizeof(DrawnToken)));
  return {};
}

StepDraws DraftDraws::Of(int32_t rows, bool filters, size_t place) const {
  StepDraws draws;
  if (rows == 0) return draws;
  draws.part = StepPart::kWhole;
  draws.params.rows = static_cast<const DrawRow*>(places_[place].rows.data());
  draws.params.edits = static_cast<const TokenEdit*>(places_[place].rows.data());
  draws.params.masks = static_cast<const uint32_t*>(draw_masks_.data());
  draws.params.mask_words = static_cast<int32_t>(MaskWords());
  draws.params.num_rows = rows;
  draws.params.filters = filters;
  draws.params.drawn = static_cast<DrawnToken*>(drawn_.data());
  return draws;
}

Status DraftDraws::Wait(size_t place) { return device_.Synchronize(*places_[place].done); }

Status DraftDraws::Record(size_t place, Stream& stream) {
  return device_.Record(*places_[place].done, stream);
}

Status DraftDraws::Upload(std::span<const SampleRow> samples, int32_t rows, size_t at,
                          Stream& upload, Stream& stream) {
  AISP_CHECK(rows <= options_.rows && samples.size() <= static_cast<size_t>(rows));
  Place& place = places_[at];
  auto* const draws = static_cast<DrawRow*>(place.staging.data());
  const size_t first = FirstEdit(static_cast<size_t>(rows));
  auto* const edits = static_cast<TokenEdit*>(place.staging.data()) + first;
  auto* const masks = static_cast<uint32_t*>(place.mask_staging.data());
  size_t used = 0, masked = 0;
  place.refused.assign(samples.size(), Status{});
  place.positions.clear();
  for (size_t i = 0; i < samples.size(); ++i) {
    DrawRow& draw = draws[i] = DrawRowOf(samples[i]);
    if (options_.slots == 0) draw.slot = -1;
    AISP_CHECK(draw.slot < options_.slots);
    place.positions.push_back(samples[i].position);
    draw.logit_index = samples[i].logit_index;
    draw.num_logprobs = 0;
    draw.drawn_at = static_cast<int32_t>(DrawnAt(at, i));
    if (!samples[i].mask.empty()) {
      AISP_CHECK(samples[i].mask.size() == MaskWords());
      draw.mask = static_cast<int32_t>(masked);
      std::copy(samples[i].mask.begin(), samples[i].mask.end(), masks + masked++ * MaskWords());
    }
    const size_t begin = used;
    draw.edit_begin = static_cast<int32_t>(first + begin);
    if (!edits_.Append(samples[i], {edits, MaxEdits()}, &used)) {
      used = begin;
      draw.logit_index = -1;
      place.refused[i] = ResourceExhausted("the edits of a draft's logits have no room");
    }
    draw.edit_count = static_cast<int32_t>(used - begin);
  }
  for (size_t i = samples.size(); i < static_cast<size_t>(rows); ++i) {
    draws[i] = DrawRow{};
    draws[i].logit_index = -1;
  }
  AISP_RETURN_IF_ERROR(
      device_.Upload(place.rows.data(), draws, DrawBytes(static_cast<size_t>(rows), used), upload));
  if (masked == 0) return {};
  return device_.Copy(draw_masks_.data(), masks, masked * MaskWords() * sizeof(uint32_t), stream);
}

SampledToken DraftDraws::TokenOf(size_t place, size_t sample) const {
  const DrawnToken& drawn = static_cast<const DrawnToken*>(drawn_.data())[DrawnAt(place, sample)];
  const Place& of = places_[place];
  SampledToken out;
  if (!of.refused[sample]) {
    out.status = of.refused[sample];
  } else if (drawn.status == DrawStatus::kNotFinite) {
    out.status = tl::unexpected(NotFiniteError(of.positions[sample]));
  } else if (drawn.status == DrawStatus::kNothingLeft) {
    out.status = tl::unexpected(NothingLeftError());
  } else {
    AISP_CHECK(drawn.token >= 0 && drawn.token < options_.vocabulary);
    out.token = drawn.token;
    out.logprob = TokenLogprob{.logprob = drawn.logprob, .top = {}};
  }
  return out;
}

std::vector<SampledToken> DraftDraws::Drawn(size_t place) const {
  std::vector<SampledToken> drawn;
  drawn.reserve(places_[place].positions.size());
  for (size_t i = 0; i < places_[place].positions.size(); ++i) drawn.push_back(TokenOf(place, i));
  return drawn;
}

}  // namespace aisp
