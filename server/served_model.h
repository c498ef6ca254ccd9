// ServedModel: the text side of a checkpoint, and its identity: tokenizer, chat template, what generation_config.json says,
// the context limit, and the fingerprint that routers and workers compare. No weights.
//
// Immutable after Load; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "api/request.h"
#include "api/response.h"
#include "common.pb.h"
#include "config/config.h"
#include "kvcache/layout.h"
#include "model/spec.h"
#include "text/chat_template.h"
#include "text/tokenizer.h"

namespace aisp {

struct ServedModel {
  std::string path;
  std::string name;
  int32_t max_model_len = 0;
  ModelSpec spec;
  KvLayout kv_layout;  // num_blocks as this config would make it
  v1::Fingerprint fingerprint;
  std::unique_ptr<Tokenizer>
      tokenizer;  // null: the checkpoint has none; prompts are token ids then. A shape has a plain one
  std::unique_ptr<ChatTemplate> chat_template;  // null: the checkpoint has none
  std::vector<TokenId> eos;
  // More text than this cannot fit the context whatever it says, so it is not tokenized to find out; 0: not known.
  size_t max_text_bytes = 0;
  ApiLimits limits;  // with the checkpoint's own sampling defaults

  // NOT_FOUND when a client names another model; "" is this one.
  ApiResult<void> CheckName(const std::string& requested) const;
  // `add_special`: beside what the template brings.
  ApiResult<std::vector<TokenId>> RenderChat(const ChatRequest& request,
                                             bool add_special = false) const;
  ApiResult<std::vector<TokenId>> EncodePrompt(const Prompt& prompt, bool add_special = true) const;
  std::string TextOf(const Prompt& prompt) const;
  // INVALID_ARGUMENT (context_length_exceeded) for so much text.
  ApiResult<void> CheckTextSize(size_t bytes, const std::string& param) const;
  // Without max_tokens: completions get OpenAI's 16, a chat what is left of the context.
  uint32_t DefaultMaxTokens(Endpoint endpoint, uint32_t room) const;
};

// The folder that `config.model.path` names, or the built-in model's; NOT_FOUND lists where it was looked for.
Result<std::string> ResolveModelPath(const Config& config);

// Reads everything but the weights. Errors name the file.
Result<std::unique_ptr<ServedModel>> LoadServedModel(const Config& config);

}  // namespace aisp
