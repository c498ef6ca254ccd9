#include "text/template_traits.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace aisp {
namespace {

namespace fs = std::filesystem;

ChatTemplate Parsed(std::string_view source) {
  auto parsed = ChatTemplate::Parse(source);
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return std::move(*parsed);
}

TemplateTraits Probed(std::string_view source) { return ProbeTemplate(Parsed(source)); }

constexpr std::string_view kCalls =
    "{% for m in messages %}[{{ m.role }}]{{ m.content or '' }}"
    "{% for c in m.tool_calls or [] %}{{ c.function.name }}{{ c.function.arguments | tojson }}"
    "{% endfor %}{% endfor %}";
// Like DeepSeek's: calls only without content, their arguments appended to text.
constexpr std::string_view kTextCalls =
    "{% for m in messages %}{% if m.role == 'assistant' and m.content is none %}"
    "{% for c in m.tool_calls %}{{ '[' + c.function.name + ' ' + c.function.arguments + ']' }}"
    "{% endfor %}{% elif m.role in ['user', 'assistant', 'system'] %}"
    "{{ '<' + m.role + '>' + m.content }}{% else %}{{ '(' + m.content + ')' }}{% endif %}"
    "{% endfor %}";
// Like Llama's: one call at a time.
constexpr std::string_view kOneCall =
    "{% for m in messages %}{% if m.tool_calls %}{% if m.tool_calls | length != 1 %}"
    "{{ raise_exception('one at a time') }}{% endif %}"
    "{{ m.tool_calls[0].function.arguments | tojson }}{% else %}{{ '/' + m.content }}{% endif %}"
    "{% endfor %}";

TEST(TemplateTraits, AreSeenFromWhatIsRendered) {
  TemplateTraits text;
  text.arguments_as_text = true;
  text.calls_beside_content = false;
  EXPECT_EQ(Probed(kCalls), TemplateTraits{});
  TemplateTraits found = Probed(kTextCalls);
  EXPECT_FALSE(std::exchange(found.developer_as_system, false)) << "it shows every other role";
  EXPECT_EQ(found, text);
  EXPECT_FALSE(Probed(kOneCall).several_calls);
  EXPECT_TRUE(
      Probed("{% for m in messages %}{{ m.role + m.content }}{% endfor %}").content_as_text);
  EXPECT_TRUE(Probed("{% for m in messages %}{{ m.content }}{% for c in m.tool_calls or [] %}"
                     "{{ c.function.arguments }}{% endfor %}{% endfor %}")
                  .content_as_text)
      << "none would be written as None";
  const auto known = Probed(
      "{% for m in messages %}{% if m.role in ['system', 'user'] %}{{ m.content }}{% endif %}"
      "{% endfor %}");
  EXPECT_TRUE(known.developer_as_system);
}

Value Call(const char* id, int n) {
  const Value arguments(Value::Map{{"n", n}});
  return Value(
      Value::Map{{"id", id},
                 {"type", "function"},
                 {"function", Value(Value::Map{{"name", "f"}, {"arguments", arguments}})}});
}

Value Result(const char* id, const char* text) {
  return Value(Value::Map{{"role", "tool"}, {"tool_call_id", id}, {"content", text}});
}

Value Said(const char* role, const char* text) {
  return Value(Value::Map{{"role", role}, {"content", text}});
}

std::string Rendered(std::string_view source, Value::List messages) {
  const ChatTemplate parsed = Parsed(source);
  Value::Map context;
  context.Set("messages", ShapeMessages(Value(std::move(messages)), ProbeTemplate(parsed)));
  const auto text = parsed.Render(context, {});
  return text ? *text : "error: " + text.error().message;
}

Value::List Conversation(Value content, bool two) {
  Value::Map message{{"role", "assistant"}};
  message.Set("content", std::move(content));
  Value::List calls{Call("a", 1)};
  if (two) calls.push_back(Call("b", 2));
  message.Set("tool_calls", Value(std::move(calls)));
  Value::List out{Said("user", "hi"), Value(std::move(message))};
  // The results in a different order than the calls.
  if (two) out.push_back(Result("b", "B"));
  out.push_back(Result("a", "A"));
  out.push_back(Said("user", "and?"));
  return out;
}

TEST(TemplateTraits, CallsComeThroughWhateverTheTemplateTakes) {
  EXPECT_EQ(Rendered(kTextCalls, Conversation(Value(), false)),
            "<user>hi[f {\"n\": 1}](A)<user>and?");
  EXPECT_EQ(Rendered(kTextCalls, Conversation(Value(""), true)),
            "<user>hi[f {\"n\": 1}][f {\"n\": 2}](B)(A)<user>and?");
  EXPECT_EQ(Rendered(kTextCalls, Conversation(Value("Let me see."), false)),
            "<user>hi<assistant>Let me see.[f {\"n\": 1}](A)<user>and?");
  EXPECT_EQ(Rendered(kOneCall, Conversation(Value(), true)), "/hi{\"n\": 1}/A{\"n\": 2}/B/and?");
  EXPECT_EQ(Rendered(kOneCall, Conversation(Value(), false)), "/hi{\"n\": 1}/A/and?");
  EXPECT_EQ(Rendered(kCalls, Conversation(Value("So: "), true)),
            "[user]hi[assistant]So: f{\"n\": 1}f{\"n\": 2}[tool]B[tool]A[user]and?");
}

TEST(TemplateTraits, WhatDevelopersSayIsNotLost) {
  const std::string_view source =
      "{% for m in messages %}{% if m.role in ['system', 'user'] %}"
      "<{{ m.role }}>{{ m.content }}{% endif %}{% endfor %}";
  EXPECT_EQ(Rendered(source, {Said("developer", "be kind"), Said("user", "hi")}),
            "<system>be kind<user>hi");
}

TEST(TemplateTraits, ToolsMayHaveNoDescriptions) {
  const Value bare(Value::Map{{"type", Value("integer")}});
  const Value parameters(Value::Map{{"properties", Value(Value::Map{{"n", bare}})}});
  const Value function(Value::Map{{"name", Value("f")}, {"parameters", parameters}});
  const Value tools(Value::List{Value(Value::Map{{"function", function}})});
  const ChatTemplate source = Parsed(
      "{% for t in tools %}{{ t.function.name + ': ' + t.function.description }}"
      "{% for k, v in t.function.parameters.properties.items() %}{{ ' ' + k + v.description + "
      "v.type }}{% endfor %}{% endfor %}");
  EXPECT_FALSE(source.Render(Value::Map{{"tools", tools}}, {}));
  const auto rendered = source.Render(Value::Map{{"tools", WithDescriptions(tools)}}, {});
  ASSERT_TRUE(rendered) << rendered.error().message;
  EXPECT_EQ(*rendered, "f:  ninteger");
}

// Every template that writes calls writes those of a client's second turn.
TEST(TemplateTraits, PublicTemplatesTakeASecondTurn) {
  const fs::path folder = fs::path(AISP_SHARED_DIR) / "templates";
  if (!fs::is_directory(folder)) GTEST_SKIP() << folder << " is not here";
  size_t with_calls = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    std::ifstream file(entry.path(), std::ios::binary);
    std::stringstream source;
    source << file.rdbuf();
    const auto parsed = ChatTemplate::Parse(source.str());
    if (!parsed) continue;
    const TemplateTraits traits = ProbeTemplate(*parsed);
    for (const bool spoken : {false, true}) {
      for (const bool two : {false, true}) {
        Value::List messages = Conversation(spoken ? Value("Well.") : Value(), two);
        messages.pop_back();
        Value::Map context{{"bos_token", "<s>"}, {"eos_token", "</s>"}};
        // Skips templates that cannot express even one call in the form that suits them.
        context.Set("messages", ShapeMessages(Value(messages), traits));
        const auto text = parsed->Render(context, {});
        if (!text) continue;  // Mistral's ids, templates of other tools
        const bool shows = text->find("\"n\": 1") != std::string::npos;
        const bool shows_second = text->find("\"n\": 2") != std::string::npos;
        if (shows) ++with_calls;
        EXPECT_EQ(shows && two, shows_second) << entry.path().filename() << *text;
      }
    }
  }
  EXPECT_GT(with_calls, 12u);
}

}  // namespace
}  // namespace aisp
