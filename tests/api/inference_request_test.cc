// gRPC requests become the same plain data as HTTP bodies, and are refused with the same messages.
#include "api/inference_request.h"

#include <gmock/gmock.h>

#include <limits>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

ApiLimits Limits() {
  ApiLimits limits;
  limits.vocab_size = 100;
  return limits;
}

CompletionRequest Completion(const v1::InferenceRequest& request) {
  auto parsed = ParseInference(request, Limits());
  EXPECT_TRUE(parsed) << (parsed ? "" : parsed.error().message);
  return parsed ? std::get<CompletionRequest>(*parsed) : CompletionRequest{};
}

ApiError Refused(const v1::InferenceRequest& request) {
  const auto parsed = ParseInference(request, Limits());
  EXPECT_FALSE(parsed);
  return parsed ? ApiError() : parsed.error();
}

TEST(ParseInference, AClassOfServiceIsNamedAsOverHttp) {
  v1::InferenceRequest request;
  request.set_prompt("once");
  EXPECT_EQ(Completion(request).service_class, std::nullopt);
  request.set_service_class("batch");
  EXPECT_EQ(Completion(request).service_class, ServiceClass::kBatch);
  request.set_service_class("slow");
  EXPECT_EQ(Refused(request).param, "service_class");
}

TEST(ParseInference, ReadsEveryField) {
  v1::InferenceRequest r;
  r.set_model("m");
  r.mutable_prompt_token_ids()->add_ids(7);
  r.mutable_prompt_token_ids()->add_ids(8);
  r.set_temperature(0.5);
  r.set_top_p(0.25);
  r.set_top_k(40);
  r.set_min_p(0.125);
  r.set_presence_penalty(-1.5);
  r.set_frequency_penalty(1.5);
  r.set_repetition_penalty(1.25);
  (*r.mutable_logit_bias())[3] = -100;
  r.set_seed(42);
  r.set_max_tokens(7);
  r.set_min_tokens(3);
  r.add_stop("a");
  r.add_stop("b");
  r.set_include_stop_str_in_output(true);
  r.add_stop_token_ids(99);
  r.set_ignore_eos(true);
  r.set_n(2);
  r.set_echo(true);
  r.set_skip_special_tokens(false);
  r.set_return_token_ids(true);
  r.set_user("u");
  r.set_cache_salt("salt");
  r.set_priority(-3);
  const CompletionRequest c = Completion(r);
  EXPECT_EQ(c.model, "m");
  EXPECT_THAT(std::get<std::vector<TokenId>>(c.prompts.at(0)), ElementsAre(7, 8));
  EXPECT_EQ(c.sampling.temperature(), 0.5f);
  EXPECT_EQ(c.sampling.top_p(), 0.25f);
  EXPECT_EQ(c.sampling.top_k(), 40);
  EXPECT_EQ(c.sampling.min_p(), 0.125f);
  EXPECT_EQ(c.sampling.presence_penalty(), -1.5f);
  EXPECT_EQ(c.sampling.frequency_penalty(), 1.5f);
  EXPECT_EQ(c.sampling.repetition_penalty(), 1.25f);
  EXPECT_EQ(c.sampling.logit_bias().at(3), -100.0f);
  EXPECT_EQ(c.sampling.seed(), 42u);
  EXPECT_EQ(c.sampling.num_logprobs(), -1);
  EXPECT_EQ(c.max_tokens, 7u);
  EXPECT_EQ(c.min_tokens, 3u);
  EXPECT_THAT(c.stop, ElementsAre("a", "b"));
  EXPECT_TRUE(c.include_stop_in_output);
  EXPECT_THAT(c.stop_token_ids, ElementsAre(99));
  EXPECT_TRUE(c.ignore_eos);
  EXPECT_EQ(c.n, 2u);
  EXPECT_TRUE(c.echo);
  EXPECT_FALSE(c.skip_special_tokens);
  EXPECT_TRUE(c.return_token_ids);
  EXPECT_EQ(c.user, "u");
  EXPECT_EQ(c.cache_salt, "salt");
  EXPECT_EQ(c.priority, -3);
}

// Fails when a field is added to the message but not to this test, or is not read.
TEST(ParseInference, ReadsAllFieldsThatTheMessageHas) {
  EXPECT_EQ(v1::InferenceRequest::descriptor()->field_count(), 36);
}

TEST(ParseInference, ReadsWhatIsAskedOfThePrompt) {
  v1::InferenceRequest r;
  r.set_prompt("p");
  r.set_suffix("s");
  r.set_prompt_logprobs(2);
  const CompletionRequest c = Completion(r);
  EXPECT_EQ(c.suffix, "s");
  EXPECT_EQ(c.prompt_logprobs, 2);
}

TEST(ParseInference, ReadsConstraintCallsAndThinking) {
  v1::InferenceRequest r;
  r.set_prompt("p");
  r.mutable_structured_outputs()->set_regex("a+");
  EXPECT_EQ(Completion(r).sampling.constraint().kind(), v1::Constraint::REGEX);
  EXPECT_EQ(Completion(r).sampling.constraint().text(), "a+");
  r.mutable_structured_outputs()->set_json_object(true);
  EXPECT_THAT(Refused(r).param, HasSubstr("structured_outputs"));

  v1::InferenceRequest c;
  v1::ChatMessage* user = c.mutable_chat()->add_messages();
  user->set_role("user");
  user->set_content("hi");
  auto& tool = *c.mutable_chat()->add_tools()->mutable_fields();
  tool["type"].set_string_value("function");
  auto& function = *tool["function"].mutable_struct_value()->mutable_fields();
  function["name"].set_string_value("get_weather");
  c.mutable_tool_choice()->set_string_value("required");
  c.set_parallel_tool_calls(false);
  c.set_reasoning_effort("low");
  c.set_thinking_token_budget(5);
  const auto parsed = ParseInference(c, Limits());
  ASSERT_TRUE(parsed) << parsed.error().message;
  const auto& chat = std::get<ChatRequest>(*parsed);
  ASSERT_EQ(chat.tool_options.tools.size(), 1u);
  EXPECT_EQ(chat.tool_options.tools[0].name, "get_weather");
  EXPECT_EQ(chat.tool_options.choice, ToolChoice::kRequired);
  EXPECT_FALSE(chat.tool_options.parallel);
  EXPECT_EQ(chat.thinking.effort, "low");
  EXPECT_EQ(chat.thinking.budget, 5u);
}

TEST(ParseInference, ReadsHowManyTokensMayBeProposed) {
  v1::InferenceRequest r;
  r.set_prompt("p");
  EXPECT_FALSE(Completion(r).sampling.has_max_draft_tokens());
  r.mutable_speculation()->set_string_value("off");
  EXPECT_EQ(Completion(r).sampling.max_draft_tokens(), 0u);
  auto& fields = *r.mutable_speculation()->mutable_struct_value()->mutable_fields();
  fields["num_speculative_tokens"].set_number_value(3);
  EXPECT_EQ(Completion(r).sampling.max_draft_tokens(), 3u);
  fields["num_speculative_tokens"].set_null_value(google::protobuf::NULL_VALUE);
  EXPECT_FALSE(Completion(r).sampling.has_max_draft_tokens());
  fields["k"].set_number_value(3);
  EXPECT_EQ(Refused(r).param, "speculation");
}

TEST(ParseInference, AbsentFieldsTakeTheDefaults) {
  v1::InferenceRequest r;
  r.set_prompt("p");
  const CompletionRequest c = Completion(r);
  EXPECT_EQ(c.model, "");
  EXPECT_EQ(c.sampling.temperature(), 1.0f);
  EXPECT_EQ(c.max_tokens, std::nullopt);
  EXPECT_EQ(c.n, 1u);
  EXPECT_TRUE(c.skip_special_tokens);
}

TEST(ParseInference, NothingIsWrittenOnlyWhereThePromptIsAskedFor) {
  v1::InferenceRequest r;
  r.set_prompt("p");
  r.set_max_tokens(0);
  EXPECT_EQ(Refused(r).param, "max_tokens");
  r.set_prompt_logprobs(0);
  EXPECT_EQ(Completion(r).max_tokens, 0u);
  r.clear_prompt();
  r.mutable_chat()->add_messages()->set_role("user");
  r.mutable_chat()->mutable_messages(0)->set_content("hi");
  EXPECT_EQ(Refused(r).param, "max_tokens");
}

TEST(ParseInference, AChatIsWhatTheHttpBodyIs) {
  v1::InferenceRequest r;
  v1::ChatMessage* user = r.mutable_chat()->add_messages();
  user->set_role("user");
  user->set_content("hi");
  user->set_name("fox");
  r.set_logprobs(2);
  auto* kwargs = r.mutable_chat()->mutable_chat_template_kwargs()->mutable_fields();
  (*kwargs)["count"].set_number_value(3);
  (*kwargs)["share"].set_number_value(0.5);
  const auto parsed = ParseInference(r, Limits());
  ASSERT_TRUE(parsed) << parsed.error().message;
  const auto& chat = std::get<ChatRequest>(*parsed);
  const Value::Map& message = chat.messages.AsList().at(0).AsMap();
  EXPECT_EQ(message.Find("role")->AsString(), "user");
  EXPECT_EQ(message.Find("content")->AsString(), "hi");
  EXPECT_EQ(message.Find("name")->AsString(), "fox");
  EXPECT_EQ(chat.sampling.num_logprobs(), 2);
  EXPECT_TRUE(chat.template_variables.AsMap().Find("count")->IsInt());
  EXPECT_TRUE(chat.template_variables.AsMap().Find("share")->IsFloat());
}

TEST(ParseInference, RefusesInTheWordsOfHttp) {
  v1::InferenceRequest r;
  EXPECT_THAT(Refused(r).message, HasSubstr("input is missing"));
  r.set_prompt("p");
  r.set_temperature(std::numeric_limits<double>::quiet_NaN());
  EXPECT_EQ(Refused(r).param, "temperature");
  r.set_temperature(-1);
  EXPECT_EQ(Refused(r).message,
            ParseCompletion(R"({"prompt":"p","temperature":-1})", Limits()).error().message);
  r.clear_temperature();
  r.set_logprobs(-2);
  EXPECT_EQ(Refused(r).param, "logprobs");
  r.mutable_chat()->add_messages()->set_role("user");
  EXPECT_EQ(Refused(r).param, "logprobs");
  r.clear_logprobs();
  r.mutable_chat()->add_tools();
  EXPECT_EQ(Refused(r).param, "tools");
}

TEST(ParseInference, RefusesDeepStructs) {
  v1::InferenceRequest r;
  v1::ChatMessage* user = r.mutable_chat()->add_messages();
  user->set_role("user");
  auto* at = r.mutable_chat()->mutable_chat_template_kwargs();
  for (int i = 0; i < 80; ++i) at = (*at->mutable_fields())["x"].mutable_struct_value();
  EXPECT_THAT(Refused(r).message, HasSubstr("deeper than 64"));
}

}  // namespace
}  // namespace aisp
