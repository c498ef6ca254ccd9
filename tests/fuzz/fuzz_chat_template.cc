// Chat templates: any of them may fail, none may crash, run forever or use unbounded memory.
#include "common/check.h"
#include "tests/fuzz/fuzz_target.h"
#include "text/chat_template.h"

namespace aisp {

void FuzzOne(std::string_view input) {
  const auto program = ChatTemplate::Parse(input);
  if (!program) {
    AISP_CHECK(!program.error().message.empty());
    return;
  }
  const Value::Map user = {{"role", "user"}, {"content", "Tell \"me\" <a> story\n"}};
  const Value::Map call = {
      {"role", "assistant"},
      {"content", Value()},
      {"tool_calls",
       Value::List{Value::Map{
           {"id", "c1"},
           {"function", Value::Map{{"name", "f"}, {"arguments", Value::Map{{"x", 1.5}}}}}}}}};
  const Value::Map context = {{"messages", Value::List{user, call, user}},
                              {"tools", Value::List{Value::Map{{"name", "f"}}}},
                              {"add_generation_prompt", true},
                              {"bos_token", "<s>"},
                              {"eos_token", "</s>"},
                              {"number", int64_t{-7}}};
  RenderOptions options;
  options.max_steps = 20'000;
  options.max_output_bytes = 64 << 10;
  const auto text = program->Render(context, options);
  if (text) AISP_CHECK(text->size() <= options.max_output_bytes);
}

}  // namespace aisp
