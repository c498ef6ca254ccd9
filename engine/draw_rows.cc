#include "engine/draw_rows.h"

namespace aisp {

DrawRow DrawRowOf(const SampleRow& row) {
  const SamplingParams& p = *row.params;
  DrawRow out;
  out.slot = row.slot;
  out.position = row.position;
  out.choice = p.choice;
  out.seed = p.seed;
  out.temperature = p.temperature;
  out.top_p = p.top_p;
  out.min_p = p.min_p;
  out.top_k = p.top_k;
  out.presence_penalty = p.presence_penalty;
  out.frequency_penalty = p.frequency_penalty;
  out.repetition_penalty = p.repetition_penalty;
  out.num_logprobs = p.num_logprobs;
  return out;
}

bool FiltersTokens(const SampleRow& row) {
  const SamplingParams& p = *row.params;
  return p.temperature > 0 && (p.top_k > 0 || p.top_p < 1 || p.min_p > 0);
}

bool EditWriter::Append(const SampleRow& row, std::span<TokenEdit> room, size_t* used) {
  const SamplingParams& p = *row.params;
  const size_t first = *used;
  const auto at = [&](TokenId token) -> TokenEdit* {
    const auto t = static_cast<size_t>(token);
    if (token < 0 || t >= edit_of_token_.size()) return nullptr;
    if (edit_of_token_[t] < 0) {
      if (*used == room.size()) return nullptr;
      edit_of_token_[t] = static_cast<int32_t>(*used);
      room[*used] = TokenEdit{};
      room[*used].token = token;
      ++*used;
    }
    return &room[static_cast<size_t>(edit_of_token_[t])];
  };
  if (p.repetition_penalty != 1 && p.repetition_penalty > 0) {
    for (const auto tokens : {row.prompt, row.generated}) {
      for (TokenId t : tokens) {
        if (TokenEdit* edit = at(t)) edit->repeated = 1;
      }
    }
  }
  if (p.presence_penalty != 0 || p.frequency_penalty != 0) {
    for (TokenId t : row.generated) {
      if (TokenEdit* edit = at(t)) ++edit->count;
    }
  }
  for (const auto& [token, bias] : p.logit_bias) {
    if (TokenEdit* edit = at(token)) edit->bias += bias;
  }
  for (TokenId t : row.banned) {
    if (TokenEdit* edit = at(t)) edit->banned = 1;
  }
  const bool full = *used == room.size();
  for (size_t i = first; i < *used; ++i) edit_of_token_[static_cast<size_t>(room[i].token)] = -1;
  return !full;
}

}  // namespace aisp
