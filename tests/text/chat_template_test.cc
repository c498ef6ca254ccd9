#include "text/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <span>

#include "common/strings.h"
#include "tests/support/sanitized.h"
#include "tests/text/fixtures.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using testing::Json;

// 2026-01-31 12:00:00 UTC.
constexpr int64_t kNow = 1769860800;

std::string Render(std::string_view source, const char* context = "{}") {
  auto t = ChatTemplate::Parse(source);
  if (!t) return "PARSE " + t.error().message;
  RenderOptions options;
  options.now_s = kNow;
  auto r = t->Render(testing::ToValue(Json::parse(context)).AsMap(), options);
  return r ? *r : "ERROR " + r.error().message;
}

struct Case {
  const char* source;
  const char* expected;
};

// The expected texts are what jinja2 3.1 prints.
class Expression : public ::testing::TestWithParam<Case> {};

TEST_P(Expression, PrintsWhatJinjaPrints) {
  EXPECT_EQ(
      Render(
          GetParam().source,
          R"({"s": "Héllo", "l": [3, 1, 2], "m": {"b": 1, "a": {"x": [true, null, 1.5]}}, "n": null})"),
      GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, Expression,
    ::testing::Values(
        Case{"{{ 1 + 2 * 3 ** 2 }} {{ -7 // 2 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 6 / 2 }}",
             "19 -4 2 3.5 3.0"},
        Case{"{{ 'a' ~ 1 ~ none ~ true }}", "a1NoneTrue"},
        Case{"{{ l[1:] }} {{ l[::-1] }} {{ s[1] }} {{ s[-2:] }}", "[1, 2] [2, 1, 3] é lo"},
        Case{"{{ m.a.x }} {{ m['a'] }}", "[True, None, 1.5] {'x': [True, None, 1.5]}"},
        Case{"{{ m | tojson }}", R"({"b": 1, "a": {"x": [true, null, 1.5]}})"},
        Case{"{{ {'k': ['é', '\"\\n']} | tojson(indent=2) }}",
             "{\n  \"k\": [\n    \"é\",\n    \"\\\"\\n\"\n  ]\n}"},
        Case{"{{ 'x' if n else 'y' }}{{ 'z' if n }}", "y"},
        Case{"{{ 1 < 2 < 3 }} {{ 3 in l }} {{ 'z' not in s }}", "True True True"},
        Case{"{{ missing is defined }} {{ missing | default('d') }} [{{ missing }}]", "False d []"},
        Case{"{{ l | sort | join(',') }} {{ l | map('string') | join }} {{ l | select('gt', 1) | "
             "list }}",
             "1,2,3 312 [3, 2]"},
        Case{"{{ m | dictsort }} {{ m.items() | list | length }}",
             "[('a', {'x': [True, None, 1.5]}), ('b', 1)] 2"},
        Case{"{{ ' x '.strip() }}{{ 'a,b'.split(',') }}{{ 'abc'.startswith(('x', 'ab')) }}",
             "x['a', 'b']True"},
        Case{"{{ not n and l }} {{ (1, 'a') }} {{ 1e20 }} {{ 0.1 + 0.2 }}",
             "[3, 1, 2] (1, 'a') 1e+20 0.30000000000000004"},
        Case{"{{ '%s-%d' % ('a', 3) }} {{ '{}{x}'.format(1, x=2) }}", "a-3 12"},
        Case{"{{ strftime_now('%d %b %Y %H:%M') }}", "31 Jan 2026 12:00"},
        Case{"{{ s is string and l is sequence and m is mapping and n is none and 4 is even }}",
             "True"},
        Case{"{{ 'STRASSE' | lower }} {{ 'straße' | upper }} {{ 'ab cd' | title }}",
             "strasse STRASSE Ab Cd"},
        Case{"{{ '<' | escape ~ '<' }} {{ ('a' | safe) + '<b>' }}", "&lt;< a&lt;b&gt;"},
        Case{"{{ n | selectattr('x') | list }}{{ range(2, 9, 3) | list }}", "[][2, 5, 8]"},
        Case{"{{ {'a': 1}['items'] is callable }} {{ [[1, 2], [3]] | sum(start=[]) }}",
             "True [1, 2, 3]"}));

class Statement : public ::testing::TestWithParam<Case> {};

TEST_P(Statement, PrintsWhatJinjaPrints) {
  EXPECT_EQ(Render(GetParam().source, R"({"l": [1, 2, 3]})"), GetParam().expected);
}

INSTANTIATE_TEST_SUITE_P(
    All, Statement,
    ::testing::Values(
        Case{"{% for x in l %}{{ loop.index }}{{ ',' if not loop.last }}{% endfor %}", "1,2,3"},
        Case{"{% for x in l if x > 1 %}{{ x }}/{{ loop.length }} {% else %}none{% endfor %}",
             "2/2 3/2 "},
        Case{"{% for x in [] %}{% else %}none{% endfor %}", "none"},
        Case{"{% for x in l %}{% if x == 2 %}{% continue %}{% endif %}{{ x }}{% endfor %}", "13"},
        Case{"{% for x in l %}{% if x == 2 %}{% break %}{% endif %}{{ x }}{% endfor %}", "1"},
        Case{"{% set v = 0 %}{% for x in l %}{% set v = x %}{% endfor %}{{ v }}", "0"},
        Case{"{% set ns = namespace(v=0) %}{% for x in l %}{% set ns.v = ns.v + x %}{% endfor %}{{ "
             "ns.v }}",
             "6"},
        Case{"{% macro f(a, b='B') %}{{ a }}{{ b }}{% endmacro %}{{ f(1) }}{{ f(1, b=2) }}",
             "1B12"},
        Case{"{% macro f() %}<{{ caller() }}>{% endmacro %}{% call f() %}x{% endcall %}", "<x>"},
        Case{"{% set t %}a{{ 1 }}{% endset %}{{ t }}{% filter upper %}b{% endfilter %}", "a1B"},
        Case{"{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}", "a=1"},
        Case{"{% raw %}{{ x }}{% endraw %}{# note #}!", "{{ x }}!"},
        Case{"a\n  {% if true %}\n  b\n  {%- endif %}\nc\n", "a\n  bc"},
        Case{"  {{- 1 -}}  \n x", "1x"}, Case{"{% generation %}g{% endgeneration %}", "g"},
        Case{"{% for x in [[1], [2]] recursive %}{{ loop(x) if x is iterable else x }}{% endfor %}",
             "12"}));

TEST(ChatTemplate, ErrorsNameTheLine) {
  EXPECT_THAT(Render("a\n{% if %}"), HasSubstr("line 2"));
  EXPECT_THAT(Render("a\n\n{{ x.y }}"),
              ::testing::AllOf(HasSubstr("line 3"), HasSubstr("'x' is undefined")));
  EXPECT_THAT(Render("{{ raise_exception('Roles must alternate') }}"),
              HasSubstr("Roles must alternate"));
  EXPECT_THAT(Render("{% for x in y %}"), HasSubstr("PARSE"));
  EXPECT_THAT(Render("{% include 'a' %}"), HasSubstr("not supported"));
}

// Long templates are split over lines.
// NOLINTBEGIN(bugprone-suspicious-missing-comma)
TEST(ChatTemplate, HostileTemplatesEndWithAnError) {
  const std::string deep(100'000, '(');
  std::string sum = "{{ 1";
  for (int i = 0; i < 50'000; ++i) sum += "+1";
  const std::string hostile[] = {
      "{% for a in range(100000) %}{% for b in range(100000) %}{% endfor %}{% endfor %}",
      "{{ 'a' * 10000000000 }}",
      "{% set ns = namespace(s='aaaaaaaa') %}{% for i in range(64) %}{% set ns.s = ns.s + ns.s "
      "%}{% endfor %}",
      "{% set ns = namespace(l=[]) %}{% for i in range(5000) %}{% set ns.l = [ns.l] %}{% endfor "
      "%}{{ ns.l }}",
      "{% set ns = namespace(l=[1]) %}{% for i in range(99) %}{% set ns.l = [ns.l, ns.l] %}{% "
      "endfor %}{{ ns.l | tojson }}",
      "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
      "{{ range(10 ** 9) }}",
      "{% set l = [] %}{{ l.append(l) }}",
      "{{ 9223372036854775807 + 1 }}",
      "{{ " + deep,
      "{{ " + std::string(100'000, '-') + "1 }}",
      sum + " }}",
      "{% if 1 %}" + std::string(10'000, ' ') + "{{ {}.update({'a': 1}) }}{% endif %}",
  };
  for (const std::string& source : hostile) {
    const std::string out = Render(source);
    EXPECT_TRUE(out.starts_with("ERROR") || out.starts_with("PARSE"))
        << source.substr(0, 80) << " -> " << out.substr(0, 80);
  }
}

const std::string kBig = "{% set big = 'ab' * 5000000 %}";

// Each of `hostile` was once unbounded: it ran for hours, took all memory, or overflowed the stack
// when its values were destroyed.
void ExpectBounded(std::span<const std::string> hostile) {
  std::string context = R"({"m": {"0": 0)";
  for (int i = 1; i < 5000; ++i) context += ", \"" + std::to_string(i) + "\": 0";
  context += "}}";
  for (const std::string& source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string out = Render(source, context.c_str());
    EXPECT_TRUE(out.starts_with("ERROR")) << source.substr(0, 200) << " -> " << out.substr(0, 80);
    EXPECT_LT(std::chrono::steady_clock::now() - begin,
              std::chrono::seconds(10) * kSlowerUnderSanitizers)
        << source;
    EXPECT_LT(out.size(), 8192u);
  }
}

TEST(ChatTemplate, NoValueGrowsBeyondItsBound) {
  const std::string hostile[] = {
      // Bound methods hold a reference to their object.
      "{% set ns = namespace(v=[]) %}{% for i in range(100000) %}{% set ns.v = [ns.v].copy %}"
      "{% endfor %}",
      "{% set ns = namespace(v='') %}{% for i in range(100000) %}{% set ns.v = [ns.v.upper].copy "
      "%}{% set ns.v = {'upper': ns.v} %}{% endfor %}",
      // Chains of scopes, without nesting at run time.
      "{% set ns = namespace() %}{% for x in [1] recursive %}{% macro m() %}{{ loop([1]) }}"
      "{% endmacro %}{% set ns.f = m %}{% endfor %}{% for i in range(90000) %}{{ ns.f() }}"
      "{% endfor %}",
      // Macros that call each other, in one statement that is a single node.
      "{% macro m() %}{% call m() %}{% endcall %}{% endmacro %}{{ m() }}",
      // A loop variable that stores loops after their end.
      "{% set ns = namespace() %}{% for x in [1] %}{% set ns.f = loop.changed %}{% set ns.l = loop "
      "%}{% endfor %}{{ ns.f(ns.l) }}",
      // Texts whose size can be computed before they are built.
      kBig + "{{ 'aaaaaaaaaaaaaaa'.replace('a', big) }}",
      kBig + "{{ 'aaaaaaaaaaaaaaa' | replace('', big) }}",
      kBig + "{{ range(1000) | list | tojson(indent=big) }}",
      kBig + "{{ range(1000) | list | tojson(separators=[big, big]) }}",
      kBig + "{{ ('\\n' * 1000) | indent(big, true, true) }}",
      kBig + "{{ [big, big, big] | string }}",
      kBig + "{{ big ~ big ~ big }}",
      "{{ 'a'.center(9223372036854775807) }}{{ 'a' | center(9223372036854775807) }}",
      "{{ 'a a ' * 4000000 }}{{ ('a ' * 8000000).split() }}",
      "{{ ('a\\n' * 8000000).splitlines() }}",
      // Searches that a naive implementation would make quadratic.
      "{% set s = 'a' * 8000000 %}{% set w = 'a' * 4000000 ~ 'b' %}{% for i in range(100000) %}"
      "{% set x = w in s or s.find(w) > 0 or s.rfind('b' ~ w) > 0 or s.count(w) > 0 %}{% endfor %}",
      "{% set c = 'b' * 200000 %}{% for i in range(100000) %}{% set x = ('a' * 9).strip(c) %}"
      "{% endfor %}",
      "{% set t = (range(90000) | map('string') | list) + [] %}{% for i in range(100000) %}"
      "{% set x = t | sort | first %}{% endfor %}",
  };
  ExpectBounded(hostile);
}

TEST(ChatTemplate, NoValueWorksBeyondItsBound) {
  const std::string hostile[] = {
      // Work inside a single step.
      kBig + "{% for i in range(100000) %}{% set x = 'a'.find(big) %}{% endfor %}",
      kBig +
          "{% for i in range(100000) %}{% set x = big | int %}{% set x = big | float %}{% endfor "
          "%}",
      kBig +
          "{% for i in range(100000) %}{% set x = {}[big] %}{% set x = {}.get(big) %}{% endfor %}",
      kBig + "{% set l = [big] * 100000 %}{{ l | sort | length }}",
      kBig +
          "{% set j = joiner(big) %}{{ j() }}{% for i in range(1000000) %}{% set x = j() ~ '' %}"
          "{% endfor %}",
      "{% set ns = namespace() %}{% set ns.a = ns %}{% set p = 'a.' * 4000000 %}"
      "{% for i in range(100) %}{% set x = [ns] | map(attribute=p) | list %}{% endfor %}",
      "{% for i in range(100000) %}{% set x = 'b'.startswith(('a',) * 9) %}{% set y = m | items %}"
      "{% set z = dict(m, a=1) %}{% set z = namespace(m) %}{% endfor %}",
  };
  ExpectBounded(hostile);
}
// NOLINTEND(bugprone-suspicious-missing-comma)

TEST(ChatTemplate, WhatATemplateSaysInAnErrorIsCut) {
  const std::string out = Render("{{ raise_exception('é' * 100000) }}");
  EXPECT_TRUE(out.starts_with("ERROR"));
  EXPECT_LT(out.size(), 8192u);
  EXPECT_TRUE(IsValidUtf8(out));
}

// The search functions are implemented without std::string's, but must give Python's results.
TEST(ChatTemplate, SearchesAgreeWithPython) {
  EXPECT_EQ(
      Render("{{ 'aXbXc'.rsplit('X', 1) }} {{ 'aaaa'.split('aa') }} {{ 'aaa'.rsplit('aa') }}"),
      "['aXb', 'c'] ['', '', ''] ['a', '']");
  EXPECT_EQ(
      Render("{{ 'hé-hé-hé'.rsplit('-hé', 1) }} {{ 'aaa'.count('aa') }} {{ 'abc'.count('') }}"),
      "['hé-hé', ''] 1 4");
  EXPECT_EQ(Render("{{ ('ab' * 40).rfind('ab' * 20) }} {{ ('ab' * 40).find('ab' * 20) }} "
                   "{{ ('ab' * 40).rfind('ba' * 20) }} {{ 'abc'.find('') }}"),
            "40 0 39 0");
  EXPECT_EQ(Render("{{ 'aaaa'.replace('aa', 'b', 1) }} {{ 'abc'.replace('', '-', 2) }} "
                   "{{ 'x'.replace('', '-') }} {{ 'zyxyz'.strip('zy') }}"),
            "baa -a-bc -x- x");
}

TEST(ChatTemplate, ANamespaceThatHoldsItselfIsFreed) {
  // ASan's leak checker sees what is not freed.
  EXPECT_EQ(Render("{% set ns = namespace() %}{% set ns.self = ns %}{% macro f() %}{% endmacro "
                   "%}{% set ns.f = f %}ok"),
            "ok");
}

TEST(ChatTemplate, TheCallersValuesAreNotChanged) {
  EXPECT_THAT(Render("{{ l.append(1) }}", R"({"l": []})"), HasSubstr("cannot append"));
  EXPECT_EQ(Render("{% set l = [1] %}{% if l.append(2) %}{% endif %}{{ l }}"), "[1, 2]");
}

TEST(ChatTemplate, StoryModelRendersTheRecordedPrompts) {
  const auto folder = std::filesystem::path(AISP_SOURCE_DIR) / "models" / "story-7m";
  const auto t = ChatTemplate::Load(folder.string());
  ASSERT_TRUE(t) << t.error().message;
  const Json expected = Json::parse(testing::ReadAll(folder / "expected.json"));
  int chats = 0;
  for (const Json& c : expected["cases"]) {
    if (!c["input"].is_array()) continue;
    ++chats;
    const Value::Map context = {{"messages", testing::ToValue(c["input"])},
                                {"bos_token", "<|bos|>"},
                                {"add_generation_prompt", true}};
    EXPECT_EQ(*t->Render(context, {}), c["rendered"].get<std::string>());
  }
  EXPECT_GT(chats, 0);
}

TEST(ChatTemplate, PublishedTemplatesRenderByteForByte) {
  const auto folder = std::filesystem::path(AISP_SHARED_DIR) / "templates";
  if (!std::filesystem::exists(folder)) GTEST_SKIP() << "no " << folder << "; set AISP_SHARED_DIR";
  int cases = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    if (entry.path().extension() != ".jinja") continue;
    const std::string stem = entry.path().stem().string();
    const std::string source = testing::ReadAll(entry.path());
    const Json expected = Json::parse(testing::ReadAll(folder / (stem + ".expected.json")));
    for (const auto& [name, c] : expected["cases"].items()) {
      ++cases;
      const std::string got = Render(source, c["context"].dump().c_str());
      if (c.contains("error")) {
        // The recorded error begins with the name of Python's exception class.
        const auto error = c["error"].get<std::string>();
        EXPECT_TRUE(got.starts_with("ERROR") || got.starts_with("PARSE")) << stem << " " << name;
        EXPECT_THAT(got, HasSubstr(error.substr(error.find(": ") + 2)));
      } else {
        EXPECT_EQ(got, c["rendered"].get<std::string>()) << stem << " " << name;
      }
    }
  }
  EXPECT_GT(cases, 100);
}

}  // namespace
}  // namespace aisp
