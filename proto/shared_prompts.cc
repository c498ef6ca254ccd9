#include "proto/shared_prompts.h"

#include <fmt/format.h>

#include <vector>

namespace aisp {

SharedPromptsOut::Use SharedPromptsOut::Take(const SharedTokens& prompt) {
  const auto [known, is_new] = ids_.try_emplace(prompt.identity(), last_id_ + 1);
  if (is_new) entries_[++last_id_].prompt = prompt;
  ++entries_.at(known->second).uses;
  return {known->second, is_new};
}

bool SharedPromptsOut::Release(uint64_t id) {
  const auto it = entries_.find(id);
  if (it == entries_.end() || --it->second.uses > 0) return false;
  ids_.erase(it->second.prompt.identity());
  entries_.erase(it);
  return true;
}

void SharedPromptsOut::Clear() {
  ids_.clear();
  entries_.clear();
}

v1::SharedPrompt SharedPromptsOut::MakeMessage(uint64_t id, const SharedTokens& prompt) {
  v1::SharedPrompt message;
  message.set_prompt_id(id);
  message.mutable_tokens()->Add(prompt.begin(), prompt.end());
  return message;
}

Status SharedPromptsIn::Keep(const v1::SharedPrompt& message) {
  const uint64_t id = message.prompt_id();
  if (id == 0 || prompts_.contains(id))
    return InvalidArgument(fmt::format("a shared prompt has the id {}, which is 0 or taken", id));
  const auto size = static_cast<size_t>(message.tokens_size());
  if (prompts_.size() >= kMaxPrompts || size > kMaxTokens - tokens_) {
    return ResourceExhausted(
        fmt::format("the peer shares {} prompts with {} tokens; the limits of a link are {} and {}",
                    prompts_.size() + 1, tokens_ + size, kMaxPrompts, kMaxTokens));
  }
  tokens_ += size;
  prompts_.emplace(id, std::vector<TokenId>(message.tokens().begin(), message.tokens().end()));
  return {};
}

void SharedPromptsIn::Drop(uint64_t id) {
  const auto it = prompts_.find(id);
  if (it == prompts_.end()) return;
  tokens_ -= it->second.size();
  prompts_.erase(it);
}

std::optional<SharedTokens> SharedPromptsIn::Find(uint64_t id) const {
  const auto it = prompts_.find(id);
  return it == prompts_.end() ? std::nullopt : std::optional(it->second);
}

}  // namespace aisp
