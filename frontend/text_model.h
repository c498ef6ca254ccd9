// TextModel: what turns requests into tokens and tokens into answers: tokenizer, chat template,
// formats of calls and thinking, the context limit and the defaults of generation_config.json.
//
// Immutable once made but for the names of adapters; any thread.
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
  int32_t vocabulary = 0;  // tokens that the model has an embedding for: ids are below it
  int32_t hidden = 0;      // values of a hidden state, and of an embedding
  std::unique_ptr<Tokenizer> tokenizer;  // null: the checkpoint has none; prompts are token ids
                                         // then. A shape has a plain one
  std::unique_ptr<ChatTemplate> chat_template;  // null: the checkpoint has none
  TemplateTraits template_traits;               // in which form it takes conversations
  // How it writes calls and thinking; null: not at all, or in no way that is known here.
  const CallFormat* call_format = nullptr;
  const ThinkFormat* think_format = nullptr;
  // Control tokens that these formats write: shown to who reads the answer, sorted.
  std::vector<TokenId> markers;
  std::vector<TokenId> eos;
  // LoRA adapters that are served beside it; the one thing here that changes later.
  std::shared_ptr<ServedAdapters> adapters = std::make_shared<ServedAdapters>();
  // What embeddings are made of, and why there are none where it is POOL_NONE.
  v1::Pooling pooling = v1::POOL_NONE;
  std::string no_embeddings;
  // Null: without a tokenizer nothing is constrained.
  std::shared_ptr<ConstraintCompiler> constraints;
  // More text than this cannot fit the context whatever it says, so it is not tokenized to find
  // out; 0: not known.
  size_t max_text_bytes = 0;
  size_t max_answer_bytes = 64 << 20;  // of a text that is answered whole (http.max_answer)
  ApiLimits limits;                    // with the checkpoint's own sampling defaults

  // NOT_FOUND when a client names another model than this one ("" too) and its adapters.
  ApiResult<void> CheckName(const std::string& requested) const;
  // `add_special`: beside what the template brings.
  ApiResult<std::vector<TokenId>> RenderChat(const ChatRequest& request,
                                             bool add_special = false) const;
  ApiResult<std::vector<TokenId>> EncodePrompt(const Prompt& prompt, bool add_special = true) const;
  std::string TextOf(const Prompt& prompt) const;
  // INVALID_ARGUMENT names the first token that the model has no embedding for: a tokenizer may
  // know more than its model.
  ApiResult<void> CheckIds(const std::vector<TokenId>& tokens, const std::string& param) const;
  // INVALID_ARGUMENT (context_length_exceeded) for so much text.
  ApiResult<void> CheckTextSize(size_t bytes, const std::string& param) const;
  // Without max_tokens: completions get OpenAI's 16, a chat what is left of the context.
  uint32_t DefaultMaxTokens(Endpoint endpoint, uint32_t room) const;
};

}  // namespace aisp
