// TextModel: what turns requests into tokens and tokens into answers: tokenizer, chat template,
// formats of calls and thinking, the context length and the defaults of generation_config.json.
//
// Immutable except for the adapters; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "answer/format.h"
#include "api/request.h"
#include "api/response.h"
#include "common.pb.h"
#include "frontend/constraint_compiler.h"
#include "frontend/served_adapters.h"
#include "text/chat_template.h"
#include "text/template_traits.h"
#include "text/tokenizer.h"
#include "worker.pb.h"

namespace aisp {

struct TextModel {
  std::string name;
  int32_t max_model_len = 0;
  int32_t vocabulary = 0;                // number of embeddings; valid ids are below it
  int32_t hidden = 0;                    // size of a hidden state and of an embedding
  std::unique_ptr<Tokenizer> tokenizer;  // null: none in the checkpoint, prompts are token ids
  std::unique_ptr<ChatTemplate> chat_template;  // null: none in the checkpoint
  TemplateTraits template_traits;               // the message form that the template expects
  // How the model writes calls and thinking; null: not at all, or unknown.
  const CallFormat* call_format = nullptr;
  const ThinkFormat* think_format = nullptr;
  // Control tokens of these formats, sorted; the answer parser needs to see them.
  std::vector<TokenId> markers;
  std::vector<TokenId> eos;
  // LoRA adapters; the only part that changes later.
  std::shared_ptr<ServedAdapters> adapters = std::make_shared<ServedAdapters>();
  // How embeddings are pooled; for POOL_NONE, `no_embeddings` says why there are none.
  v1::Pooling pooling = v1::POOL_NONE;
  std::string no_embeddings;
  // Null without a tokenizer: answers cannot be constrained.
  std::shared_ptr<ConstraintCompiler> constraints;
  // Longer text cannot fit the context, so it is refused without tokenizing; 0: unknown.
  size_t max_text_bytes = 0;
  size_t max_answer_bytes = 64 << 20;  // limit for a text answered whole (http.max_answer)
  ApiLimits limits;                    // with the checkpoint's sampling defaults

  // NOT_FOUND when `requested` is neither this model ("" is) nor one of its adapters.
  ApiResult<void> CheckName(const std::string& requested) const;
  // `add_special`: in addition to the template's.
  ApiResult<std::vector<TokenId>> RenderChat(const ChatRequest& request,
                                             bool add_special = false) const;
  ApiResult<std::vector<TokenId>> EncodePrompt(const Prompt& prompt, bool add_special = true) const;
  std::string TextOf(const Prompt& prompt) const;
  // INVALID_ARGUMENT names the first token without an embedding: a tokenizer may have more tokens
  // than the model.
  ApiResult<void> CheckIds(const std::vector<TokenId>& tokens, const std::string& param) const;
  // INVALID_ARGUMENT (context_length_exceeded) when the text is longer than max_text_bytes.
  ApiResult<void> CheckTextSize(size_t bytes, const std::string& param) const;
  // Without max_tokens: 16 for completions, as OpenAI; for a chat the rest of the context.
  uint32_t DefaultMaxTokens(Endpoint endpoint, uint32_t room) const;
};

}  // namespace aisp
