#include "constrain/plan_constraint.h"

#include <gtest/gtest.h>

#include <random>

#include "constrain/text_constraint.h"
#include "tests/constrain/schema_harness.h"

namespace aisp {
namespace {

const std::vector<std::string> kPieces = {
    "<tool_call>", "}}",   "}\n",     "}\n</",       "}}\n</tool_call>",
    "{\"",         "\": ", "\": {\"", "think>",      "</think>",
    "</think>\n",  ">\n",  "name",    " a",          "{}",
    "{}}",         "} ",   "}x",      "<tool_call>x"};

AnswerPlan::Tool Tool(const std::string& name, std::string_view schema) {
  return {name, Compile(schema, kPieces)};
}

AnswerPlan Hermes(AnswerPlan::Then then) {
  AnswerPlan plan;
  plan.then = then;
  plan.tools = {Tool("get", R"({"type":"object","properties":{"n":{"type":"integer"}},)"
                            R"("required":["n"],"additionalProperties":false})"),
                Tool("get_all", R"({"type":"object","additionalProperties":false})")};
  plan.before = "<tool_call>\n{\"name\": \"";
  plan.middle = "\", \"arguments\": ";
  plan.after = "}\n</tool_call>";
  plan.separator = "\n";
  if (then == AnswerPlan::Then::kFree) plan.trigger = "<tool_call>";
  return plan;
}

std::shared_ptr<Constraint> Made(AnswerPlan plan) {
  auto made = MakePlanConstraint(std::move(plan), Vocabulary(kPieces));
  EXPECT_TRUE(made) << made.error().message;
  return made.value_or(nullptr);
}

constexpr char kCall[] =
    "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 5}}\n</tool_call>";
constexpr char kOther[] = "<tool_call>\n{\"name\": \"get_all\", \"arguments\": {}}\n</tool_call>";

// At every step of a random text the mask equals what Advance accepts, and rolling back restores
// the state.
void Walk(const std::shared_ptr<Constraint>& c, uint32_t seed) {
  const auto trie = Vocabulary(kPieces);
  std::mt19937 draw(seed);
  const auto matcher = c->NewMatcher();
  TokenMask mask(trie->vocabulary()), again(trie->vocabulary());
  std::string text;
  for (int step = 0; step < 150; ++step) {
    matcher->Mask(&mask);
    std::vector<TokenId> allowed;
    for (size_t id = 0; id < trie->vocabulary(); ++id) {
      const auto token = static_cast<TokenId>(id);
      const bool taken = matcher->Advance(token);
      if (taken) matcher->Rewind(1);
      ASSERT_EQ(taken, mask.Has(id)) << text << " + " << trie->piece(token);
      if (taken) allowed.push_back(token);
    }
    matcher->Mask(&again);
    ASSERT_TRUE(std::equal(mask.words().begin(), mask.words().end(), again.words().begin()));
    if (allowed.empty()) {
      ASSERT_TRUE(matcher->IsWhole()) << text;
      return;
    }
    const TokenId token = allowed[draw() % allowed.size()];
    ASSERT_TRUE(matcher->Advance(token));
    text += trie->piece(token);
  }
}

TEST(PlanConstraint, ForcedCallsAreWholeCalls) {
  const auto c = Made(Hermes(AnswerPlan::Then::kCalls));
  EXPECT_TRUE(Allows(c.get(), kCall));
  EXPECT_TRUE(Allows(c.get(), kOther));
  EXPECT_TRUE(Allows(c.get(), std::string(kCall) + "\n" + kOther));
  for (const char* bad : {"", "text", "<tool_call>\n{\"name\": \"set\"",
                          "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": \"x\"",
                          "<tool_call>\n{\"name\": \"get\", \"arguments\": {}",
                          "<tool_call>\n{\"name\": \"get\", \"arguments\": {\"n\": 5} "}) {
    EXPECT_FALSE(Allows(c.get(), bad)) << bad;
  }
  AnswerPlan alone = Hermes(AnswerPlan::Then::kCalls);
  alone.parallel = false;
  const auto one = Made(std::move(alone));
  EXPECT_TRUE(Allows(one.get(), kCall));
  EXPECT_FALSE(Allows(one.get(), std::string(kCall) + "\n" + kOther));
}

TEST(PlanConstraint, FreeTextIsFreeUntilACallOpens) {
  const auto c = Made(Hermes(AnswerPlan::Then::kFree));
  EXPECT_TRUE(Allows(c.get(), ""));
  EXPECT_TRUE(Allows(c.get(), "Let me <see> <tool_cal"));
  EXPECT_TRUE(Allows(c.get(), std::string("Sure: <<tool_call") + (kCall + 10)));
  EXPECT_TRUE(Allows(c.get(), std::string("Sure.\n") + kCall));
  EXPECT_FALSE(Allows(c.get(), "Sure. <tool_call>what"));
  EXPECT_FALSE(Allows(c.get(), std::string(kCall) + " and text"));
}

TEST(PlanConstraint, ThinkingEndsByItselfOrByItsBudget) {
  AnswerPlan plan = Hermes(AnswerPlan::Then::kCalls);
  plan.think_open = "<think>";
  plan.think_close = "</think>";
  plan.after_thinking = "\n\n";
  const auto maybe = Made(plan);
  EXPECT_TRUE(Allows(maybe.get(), kCall));
  EXPECT_TRUE(Allows(maybe.get(), std::string("<think>a </thi b</think>") + kCall));
  EXPECT_TRUE(Allows(maybe.get(), std::string("<think></think>\n\n") + kCall));
  EXPECT_FALSE(Allows(maybe.get(), std::string("<think>a") + kCall));
  plan.think_is_open = true;
  plan.think_budget = 3;
  const auto open = Made(plan);
  const auto matcher = open->NewMatcher();
  for (const char* token : {"a", "b", "<"}) EXPECT_EQ(matcher->AdvanceBytes(token), 1u);
  EXPECT_EQ(matcher->Forced(100), "/think>");
  EXPECT_EQ(matcher->AdvanceBytes("x"), 0u);
  EXPECT_EQ(matcher->AdvanceBytes("/think>"), 7u);
  EXPECT_EQ(matcher->AdvanceBytes(kCall), sizeof(kCall) - 1);
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(PlanConstraint, ABodyFollowsThinking) {
  AnswerPlan plan;
  plan.then = AnswerPlan::Then::kBody;
  plan.body = *MakeChoiceConstraint({"yes", "no"}, Vocabulary(kPieces));
  plan.think_open = "<think>";
  plan.think_close = "</think>";
  const auto c = Made(std::move(plan));
  EXPECT_TRUE(Allows(c.get(), "yes"));
  EXPECT_TRUE(Allows(c.get(), "<think>hm, yes</think>no"));
  EXPECT_FALSE(Allows(c.get(), "<think>hm"));
  EXPECT_FALSE(Allows(c.get(), "maybe"));
}

// A body or calls, as with response_format and tools: `body` next to the calls of `plan`.
AnswerPlan Beside(AnswerPlan plan, std::shared_ptr<Constraint> body) {
  plan.then = AnswerPlan::Then::kBody;
  plan.body = std::move(body);
  return plan;
}

// Llama's format of calls: they begin like any JSON object.
AnswerPlan Bare() {
  AnswerPlan plan = Hermes(AnswerPlan::Then::kCalls);
  plan.before = "{\"name\": \"";
  plan.middle = "\", \"parameters\": ";
  plan.after = "}";
  plan.separator = "; ";
  return plan;
}

constexpr char kNamed[] =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer"},)"
    R"("parameters":{}},"required":["name"],"additionalProperties":false})";

TEST(PlanConstraint, ABodyMayStandBesideCalls) {
  const auto c =
      Made(Beside(Hermes(AnswerPlan::Then::kCalls), Compile(R"({"type":"array"})", kPieces)));
  EXPECT_TRUE(Allows(c.get(), "[1, 2]"));
  EXPECT_TRUE(Allows(c.get(), " []"));
  EXPECT_TRUE(Allows(c.get(), kCall));
  EXPECT_TRUE(Allows(c.get(), std::string(kCall) + "\n" + kOther));
  for (const std::string& bad :
       {std::string(), std::string("{}"), std::string("text"), std::string("[1]") + kCall,
        std::string(kCall) + "[1]", std::string("[1] <tool_call>")}) {
    EXPECT_FALSE(Allows(c.get(), bad)) << bad;
  }
}

TEST(PlanConstraint, ACallThatBeginsAsTheBodyDoesIsOneWhenItsOpeningIsComplete) {
  const auto c = Made(Beside(Bare(), Compile(kNamed, kPieces)));
  EXPECT_TRUE(Allows(c.get(), R"({"name": "Ann", "age": 5})"));
  EXPECT_TRUE(Allows(c.get(), R"({"age": 5, "name": "get"})"));
  EXPECT_TRUE(Allows(c.get(), R"({"name": "get", "age": 5})"));
  EXPECT_TRUE(Allows(c.get(), R"({"name": "get_al", "parameters": 7})"));
  EXPECT_TRUE(Allows(c.get(), R"({"name": "get", "parameters": {"n": 5}})"));
  EXPECT_TRUE(
      Allows(c.get(),
             R"({"name": "get", "parameters": {"n": 5}}; {"name": "get_all", "parameters": {}})"));
  // The body would accept it, the tool does not.
  EXPECT_FALSE(Allows(c.get(), R"({"name": "get", "parameters": 7})"));
  EXPECT_FALSE(Allows(c.get(), R"({"name": "get", "parameters": {}})"));
  // With another spelling it is no call.
  EXPECT_TRUE(Allows(c.get(), R"({"name":"get", "parameters": 7})"));
}

TEST(PlanConstraint, CallsMayEndWithTheirArguments) {
  AnswerPlan plan = Hermes(AnswerPlan::Then::kCalls);
  plan.before = "[CALLS]";
  plan.middle = "[ARGS]";
  plan.after = plan.separator = "";
  const auto c = Made(plan);
  EXPECT_TRUE(Allows(c.get(), R"([CALLS]get[ARGS]{"n": 5})"));
  EXPECT_TRUE(Allows(c.get(), R"([CALLS]get[ARGS]{"n": 5}[CALLS]get_all[ARGS]{})"));
  EXPECT_FALSE(Allows(c.get(), R"([CALLS]get[ARGS]{"n": 5}[CALLS])"));
  EXPECT_FALSE(Allows(c.get(), R"([CALLS]get[ARGS]{"n": 5} )"));
  EXPECT_FALSE(Allows(c.get(), R"([CALLS]get[ARGS]{})"));
  for (uint32_t seed = 1; seed <= 4; ++seed) Walk(c, seed);
}

TEST(PlanConstraint, ThinkingABodyAndCallsAreAlternatives) {
  AnswerPlan plan = Beside(Hermes(AnswerPlan::Then::kCalls), Compile(kNamed, kPieces));
  plan.think_open = "<think>";
  plan.think_close = "</think>";
  plan.after_thinking = "\n\n";
  const auto c = Made(plan);
  const std::string body = R"({"name": "Ann"})";
  for (const std::string& before : {std::string(), std::string("<think>{} <tool_call></think>")}) {
    EXPECT_TRUE(Allows(c.get(), before + body));
    EXPECT_TRUE(Allows(c.get(), before + kCall));
    EXPECT_FALSE(Allows(c.get(), before));
    EXPECT_FALSE(Allows(c.get(), before + "text"));
  }
  EXPECT_TRUE(Allows(c.get(), std::string("<think></think>\n\n") + kCall));
  EXPECT_TRUE(Allows(c.get(), "<think></think>\n\n" + body));
  // A body may also begin like reasoning does.
  plan.body = *MakeChoiceConstraint({"<b>", "<think"}, Vocabulary(kPieces));
  const auto tag = Made(plan);
  EXPECT_TRUE(Allows(tag.get(), "<b>"));
  EXPECT_TRUE(Allows(tag.get(), "<think"));
  EXPECT_TRUE(Allows(tag.get(), "<think>a</think><b>"));
  EXPECT_FALSE(Allows(tag.get(), "<think>"));
}

TEST(PlanConstraint, ABodyMayStandBehindAHeader) {
  AnswerPlan plan;
  plan.then = AnswerPlan::Then::kBody;
  plan.body = *MakeChoiceConstraint({"yes"}, Vocabulary(kPieces));
  plan.body_open = "<|final|>";
  plan.think_open = "<|analysis|>";
  plan.think_close = "<|end|>";
  plan.after_thinking = "<|start|>";
  const auto special = static_cast<TokenId>(Vocabulary(kPieces)->vocabulary() - 1);
  plan.markers = {{special, "<|start|>"}};
  const auto c = Made(plan);
  EXPECT_TRUE(Allows(c.get(), "<|final|>yes"));
  EXPECT_TRUE(Allows(c.get(), "<|analysis|>hm<|end|><|start|><|final|>yes"));
  for (const char* bad : {"yes", "<|analysis|>hm<|end|>yes", "<|start|><|final|>yes"})
    EXPECT_FALSE(Allows(c.get(), bad)) << bad;
  // The shortest completion from each position.
  for (const char* from : {"", "<|final", "<|final|>y", "<|analysis|>hm", "<|analysis|>hm<|e"}) {
    const auto matcher = c->NewMatcher();
    ASSERT_EQ(matcher->AdvanceBytes(from), std::string_view(from).size());
    const auto ending = matcher->FindEnding(100);
    ASSERT_TRUE(ending) << from;
    for (const TokenId token : ending->tokens) ASSERT_TRUE(matcher->Advance(token)) << from;
    EXPECT_TRUE(matcher->IsWhole()) << from;
  }
}

TEST(PlanConstraint, ControlTokensAreNoTextOfABody) {
  AnswerPlan plan = Beside(Hermes(AnswerPlan::Then::kCalls),
                           *MakePatternConstraint("[^x]*", Vocabulary(kPieces)));
  const auto trie = Vocabulary(kPieces);
  plan.open = "[TOOL_CALLS]";
  const auto special = static_cast<TokenId>(trie->vocabulary() - 1);
  plan.markers = {{special, "[TOOL_CALLS]"}};
  const auto c = Made(std::move(plan));
  const auto matcher = c->NewMatcher();
  TokenMask mask(trie->vocabulary());
  matcher->Mask(&mask);
  EXPECT_TRUE(mask.Has(static_cast<size_t>(special)));
  EXPECT_TRUE(matcher->Advance(special));
  EXPECT_EQ(matcher->AdvanceBytes("hello"), 0u);
  matcher->Rewind(1);
  EXPECT_EQ(matcher->AdvanceBytes("hello"), 5u);
  EXPECT_FALSE(matcher->Advance(special));
  EXPECT_TRUE(matcher->IsWhole());
}

TEST(PlanConstraint, ControlTokensAreTheirText) {
  AnswerPlan plan = Hermes(AnswerPlan::Then::kCalls);
  const auto trie = Vocabulary(kPieces);
  plan.open = "[TOOL_CALLS]";
  const auto special = static_cast<TokenId>(trie->vocabulary() - 1);
  plan.markers = {{special, "[TOOL_CALLS]"}};
  const auto c = Made(std::move(plan));
  const auto matcher = c->NewMatcher();
  TokenMask mask(trie->vocabulary());
  matcher->Mask(&mask);
  EXPECT_EQ(mask.Count(), 1u);
  EXPECT_TRUE(mask.Has(static_cast<size_t>(special)));
  EXPECT_TRUE(matcher->Advance(special));
  EXPECT_EQ(matcher->AdvanceBytes(kCall), sizeof(kCall) - 1);
}

TEST(PlanConstraint, MasksAndStepsAgree) {
  const auto calls = Made(Hermes(AnswerPlan::Then::kCalls));
  const auto free = Made(Hermes(AnswerPlan::Then::kFree));
  AnswerPlan thinking = Hermes(AnswerPlan::Then::kCalls);
  thinking.think_open = "<think>";
  thinking.think_close = "</think>";
  thinking.think_budget = 5;
  const auto thinks = Made(thinking);
  const auto named = Compile(kNamed, kPieces);
  const auto beside = Made(Beside(Bare(), named));
  const auto all =
      Made(Beside(std::move(thinking), *MakePatternConstraint("[^x]*|<t.*", Vocabulary(kPieces))));
  for (uint32_t seed = 1; seed <= 6; ++seed) {
    for (const auto& plan : {calls, free, thinks, beside, all}) Walk(plan, seed);
    if (HasFatalFailure()) return;
  }
}

TEST(PlanConstraint, PlansThatCannotBeWalkedAreRefused) {
  AnswerPlan plan;
  plan.then = AnswerPlan::Then::kCalls;
  EXPECT_FALSE(MakePlanConstraint(plan, Vocabulary()));
  plan = Hermes(AnswerPlan::Then::kFree);
  plan.trigger = "other";
  EXPECT_FALSE(MakePlanConstraint(plan, Vocabulary()));
  plan = {};
  plan.then = AnswerPlan::Then::kBody;
  EXPECT_FALSE(MakePlanConstraint(plan, Vocabulary()));
}

}  // namespace
}  // namespace aisp
