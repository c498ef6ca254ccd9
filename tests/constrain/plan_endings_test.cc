#include <gtest/gtest.h>

#include <random>

#include "constrain/plan_constraint.h"
#include "constrain/text_constraint.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

const std::vector<std::string> kPieces = {
    "<tool_call>", "}}",       "}\n", "}}\n</tool_call>\n<tool_call>", "{\"", "\": ",
    "think>",      "</think>", "name"};

AnswerPlan Plan(AnswerPlan::Then then, bool parallel) {
  AnswerPlan plan;
  plan.then = then;
  plan.tools = {
      {"get", Compile(R"({"type":"object","properties":{"n":{"type":"integer","minimum":100},)"
                      R"("s":{"type":"string"}},"required":["n"],"additionalProperties":false})",
                      kPieces)},
      {"get_all", Compile(R"({"type":"object","additionalProperties":false})", kPieces)}};
  plan.before = "<tool_call>\n{\"name\": \"";
  plan.middle = "\", \"arguments\": ";
  plan.after = "}\n</tool_call>";
  plan.separator = "\n";
  plan.parallel = parallel;
  if (then == AnswerPlan::Then::kFree) plan.trigger = "<tool_call>";
  if (then == AnswerPlan::Then::kBody)
    plan.body = *MakeChoiceConstraint({"yes", "no"}, Vocabulary(kPieces));
  return plan;
}

// At every step of a random text an ending is known and correct, and no token makes it longer than
// promised.
void Walk(const std::shared_ptr<Constraint>& c, uint32_t seed) {
  const auto trie = Vocabulary(kPieces);
  std::mt19937 draw(seed);
  const auto matcher = c->NewMatcher();
  TokenMask mask(trie->vocabulary());
  std::string text;
  size_t most = SIZE_MAX;
  for (int step = 0; step < 120; ++step) {
    const auto ending = matcher->FindEnding(1000);
    ASSERT_TRUE(ending) << text;
    EXPECT_LE(ending->tokens.size(), most) << text;
    most = ending->tokens.size() + ending->growth;
    size_t taken = 0;
    for (const TokenId token : ending->tokens) {
      ASSERT_TRUE(matcher->Advance(token)) << text << " + ending at " << taken;
      ++taken;
    }
    EXPECT_TRUE(matcher->IsWhole()) << text;
    matcher->Rewind(taken);
    matcher->Mask(&mask);
    // Rarely tokens that do not end a string.
    std::vector<TokenId> allowed;
    for (size_t id = 0; id < trie->vocabulary(); ++id) {
      if (mask.Has(id)) allowed.push_back(static_cast<TokenId>(id));
    }
    if (allowed.empty()) {
      EXPECT_TRUE(matcher->IsWhole()) << text;
      return;
    }
    TokenId token = allowed[draw() % allowed.size()];
    if (draw() % 2 == 0) token = allowed.back();
    if (draw() % 3 == 0 && !ending->tokens.empty()) token = ending->tokens.front();
    ASSERT_TRUE(matcher->Advance(token));
    text += trie->piece(token);
  }
}

TEST(PlanEndings, AreKnownAtEveryPlace) {
  for (const auto then :
       {AnswerPlan::Then::kFree, AnswerPlan::Then::kCalls, AnswerPlan::Then::kBody}) {
    for (const bool parallel : {false, true}) {
      AnswerPlan thinking = Plan(then, parallel);
      thinking.think_open = "<think>";
      thinking.think_close = "</think>";
      thinking.after_thinking = "\n\n";
      AnswerPlan inside = thinking;
      inside.think_is_open = true;
      inside.think_budget = 5;
      for (AnswerPlan& plan : std::vector<AnswerPlan>{Plan(then, parallel), thinking, inside}) {
        const auto made = MakePlanConstraint(std::move(plan), Vocabulary(kPieces));
        ASSERT_TRUE(made) << made.error().message;
        for (uint32_t seed = 0; seed < 30; ++seed) Walk(*made, seed);
      }
    }
  }
}

TEST(PlanEndings, AreKnownInChannels) {
  AnswerPlan plan;
  plan.then = AnswerPlan::Then::kBody;
  plan.body = *MakeChoiceConstraint({"yes", "no"}, Vocabulary(kPieces));
  plan.body_open = "<|channel|>final<|message|>";
  plan.think_open = "<|channel|>analysis<|message|>";
  plan.think_close = "<|end|>";
  plan.after_thinking = "<|start|>assistant";
  plan.think_budget = 4;
  plan.free_markers = true;
  const auto made = MakePlanConstraint(std::move(plan), Vocabulary(kPieces));
  for (uint32_t seed = 0; seed < 30; ++seed) Walk(*made, seed);
}

TEST(PlanEndings, FreeTextGoesOnWithoutACall) {
  const auto made = MakePlanConstraint(Plan(AnswerPlan::Then::kFree, true), Vocabulary(kPieces));
  const auto trie = Vocabulary(kPieces);
  const auto matcher = (*made)->NewMatcher();
  ASSERT_EQ(matcher->AdvanceBytes("Sure: <tool_call"), 16u);
  TokenMask mask(trie->vocabulary());
  matcher->Mask(&mask);
  const size_t before = mask.Count();
  EXPECT_TRUE(mask.Has('>'));
  EXPECT_TRUE(matcher->KeepWhole(&mask));
  EXPECT_FALSE(mask.Has('>'));
  EXPECT_FALSE(mask.Has(256));  // <tool_call>
  EXPECT_TRUE(mask.Has('x'));
  EXPECT_EQ(before - mask.Count(), 3u);  // and "<tool_call>" of a token that continues it
  ASSERT_EQ(matcher->AdvanceBytes(">"), 1u);
  EXPECT_FALSE(matcher->KeepWhole(&mask));
}

TEST(PlanEndings, AToolWithoutAKnownEndingHasNone) {
  AnswerPlan plan = Plan(AnswerPlan::Then::kFree, true);
  plan.tools.push_back(
      {"list", Compile(R"({"type":"object","required":["a"],"properties":{"a":{"type":"array",)"
                       R"("minItems":40,"uniqueItems":true,"items":{"type":"object"}}}})",
                       kPieces)});
  ASSERT_NE(plan.tools.back().arguments, nullptr);
  const auto made = MakePlanConstraint(std::move(plan), Vocabulary(kPieces));
  EXPECT_FALSE((*made)->NewMatcher()->FindEnding(1000));
}

}  // namespace
}  // namespace aisp
