// Chat templates: a model's Jinja program that turns messages into its prompt. Our own interpreter;
// it supports what transformers offers to templates (jinja2 3.1 with trim_blocks, lstrip_blocks,
// loop controls, {% generation %}, raise_exception, strftime_now, tojson without HTML escaping).
//
// A ChatTemplate is immutable after Parse: any number of threads may render at the same time.
// Templates are untrusted: they read only the context, and every rendering is bounded in steps,
// output and nesting.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/result.h"
#include "text/value.h"

namespace aisp {

struct RenderOptions {
  // The time for strftime_now(): seconds since the epoch, already shifted to the local time zone.
  int64_t now_s = 0;
  // Limit of evaluated nodes plus bytes / 64; RESOURCE_EXHAUSTED beyond.
  uint64_t max_steps = 5'000'000;
  size_t max_output_bytes = 16u << 20;
};

class ChatTemplate {
 public:
  // INVALID_ARGUMENT with the line when it does not parse.
  static Result<ChatTemplate> Parse(std::string_view source);
  // The template of a model folder: chat_template.jinja, else chat_template in
  // tokenizer_config.json (the one named "default" of several). NOT_FOUND when there is neither.
  static Result<ChatTemplate> Load(const std::string& model_folder);

  ChatTemplate(ChatTemplate&&) noexcept;
  ChatTemplate& operator=(ChatTemplate&&) noexcept;
  ~ChatTemplate();

  // `context`: messages, add_generation_prompt, bos_token, eos_token, tools and whatever else the
  // template reads. Strings must be valid UTF-8. INVALID_ARGUMENT has the line and the template's
  // own message when it raises an exception.
  Result<std::string> Render(const Value::Map& context, const RenderOptions& options) const;

  const std::string& source() const { return source_; }

 private:
  struct Program;
  ChatTemplate(std::string source, std::unique_ptr<const Program> program);

  std::string source_;
  std::unique_ptr<const Program> program_;
};

}  // namespace aisp
