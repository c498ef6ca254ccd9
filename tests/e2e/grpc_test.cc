// The gRPC API with real processes: the same texts as over HTTP, errors by canonical code, health
// that follows readiness, and nothing left of cancelled calls and expired deadlines.
#include <gmock/gmock.h>
#include <grpcpp/grpcpp.h>

#include <map>
#include <thread>

#include "health.grpc.pb.h"
#include "inference.grpc.pb.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;
using Health = grpc::health::v1::Health;
using HealthRequest = grpc::health::v1::HealthCheckRequest;
using HealthResponse = grpc::health::v1::HealthCheckResponse;

std::unique_ptr<v1::Inference::Stub> StubOf(const std::string& address) {
  return v1::Inference::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
}

// The result of one Generate call.
struct Outcome {
  grpc::Status status;
  std::map<uint32_t, std::string> text;
  std::map<uint32_t, std::string> finish;
  std::map<uint32_t, uint64_t> position;
  std::vector<v1::TokenLogprob> logprobs;
  std::vector<int32_t> token_ids;
  v1::Usage usage;
  int usages = 0;
  std::string request_id;
  std::string route;
  std::multimap<std::string, std::string> trailers;
};

Outcome Finish(grpc::ClientContext& context, grpc::ClientReader<v1::InferenceEvent>& reader) {
  Outcome out;
  v1::InferenceEvent event;
  while (reader.Read(&event)) {
    if (event.has_usage()) {
      ++out.usages;
      out.usage = event.usage();
      continue;
    }
    const v1::ChoiceEvent& choice = event.choice();
    EXPECT_EQ(out.finish.count(choice.index()), 0u) << "an event after the choice's end";
    EXPECT_GE(choice.position(), out.position[choice.index()]);
    out.position[choice.index()] = choice.position();
    out.text[choice.index()] += choice.text();
    for (const auto& logprob : choice.logprobs()) out.logprobs.push_back(logprob);
    for (const int32_t id : choice.token_ids()) out.token_ids.push_back(id);
    if (!choice.finish_reason().empty()) out.finish[choice.index()] = choice.finish_reason();
  }
  out.status = reader.Finish();
  for (const auto& [key, value] : context.GetServerInitialMetadata()) {
    const std::string name(key.data(), key.size());
    if (name == "x-request-id") out.request_id.assign(value.data(), value.size());
    if (name == "x-aisp-route") out.route.assign(value.data(), value.size());
  }
  for (const auto& [key, value] : context.GetServerTrailingMetadata()) {
    out.trailers.emplace(std::string(key.data(), key.size()),
                         std::string(value.data(), value.size()));
  }
  return out;
}

Outcome Generate(v1::Inference::Stub& stub, const v1::InferenceRequest& request,
                 const std::map<std::string, std::string>& metadata = {}) {
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(60));
  for (const auto& [name, value] : metadata) context.AddMetadata(name, value);
  const auto reader = stub.Generate(&context, request);
  return Finish(context, *reader);
}

v1::InferenceRequest Greedy(const std::string& prompt, int max_tokens) {
  v1::InferenceRequest request;
  request.set_prompt(prompt);
  request.set_temperature(0);
  request.set_max_tokens(max_tokens);
  return request;
}

v1::InferenceRequest ChatOf(const Recorded& story) {
  v1::InferenceRequest request;
  for (const Json& message : story.messages) {
    v1::ChatMessage* out = request.mutable_chat()->add_messages();
    out->set_role(message["role"]);
    out->set_content(message["content"]);
  }
  request.set_temperature(0);
  request.set_max_tokens(story.completion_tokens);
  return request;
}

std::string Trailer(const Outcome& out, const std::string& name) {
  const auto found = out.trailers.find(name);
  return found == out.trailers.end() ? "" : found->second;
}

TEST(Grpc, ARecordedStoryIsToldLetterByLetterWithUsageAndPositions) {
  Cluster cluster({.flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stub = StubOf(cluster.router->Await("grpc"));
  const Recorded story = RecordedStories().front();
  for (const char* route : {"remote", "local"}) {
    const Outcome out =
        Generate(*stub, ChatOf(story), {{"x-request-id", "mine-1"}, {"x-aisp-prefill", route}});
    ASSERT_TRUE(out.status.ok()) << out.status.error_message();
    EXPECT_EQ(out.text.at(0), story.text);
    EXPECT_EQ(out.finish.at(0), story.ends ? "stop" : "length");
    EXPECT_EQ(out.position.at(0), static_cast<uint64_t>(story.completion_tokens));
    EXPECT_EQ(out.usages, 1);
    EXPECT_EQ(out.usage.completion_tokens(), static_cast<uint32_t>(story.completion_tokens));
    EXPECT_GT(out.usage.timing().ttft_ms(), 0);
    EXPECT_EQ(out.request_id, "mine-1");
    EXPECT_THAT(out.route, HasSubstr("decode=decode-0"));
  }
}

// As token ids, which Tokenize returns; Detokenize gives the text back. `plain`: the outcome by
// text.
void ExpectTheSameByTokenIds(v1::Inference::Stub& stub, const std::string& prompt,
                             const Outcome& plain) {
  grpc::ClientContext tokenize;
  v1::TokenizeRequest text;
  text.set_prompt(prompt);
  text.set_return_token_strs(true);
  v1::TokenizeResponse tokens;
  ASSERT_TRUE(stub.Tokenize(&tokenize, text, &tokens).ok());
  EXPECT_EQ(tokens.count(), static_cast<uint32_t>(tokens.tokens_size()));
  EXPECT_EQ(tokens.token_strs_size(), tokens.tokens_size());
  EXPECT_EQ(tokens.max_model_len(), 2048u);
  v1::InferenceRequest by_ids = Greedy("", 24);
  *by_ids.mutable_prompt_token_ids()->mutable_ids() = tokens.tokens();
  by_ids.set_return_token_ids(true);
  by_ids.set_logprobs(2);
  const Outcome ids = Generate(stub, by_ids);
  EXPECT_EQ(ids.text.at(0), plain.text.at(0));
  EXPECT_EQ(ids.token_ids.size(), 24u);
  ASSERT_EQ(ids.logprobs.size(), 24u);
  EXPECT_EQ(ids.logprobs[3].token_id(), ids.token_ids[3]);
  ASSERT_EQ(ids.logprobs[3].top_size(), 2);
  EXPECT_EQ(ids.logprobs[3].top(0).token_id(), ids.token_ids[3]);  // greedy: the likeliest
  EXPECT_GE(ids.logprobs[3].top(0).logprob(), ids.logprobs[3].top(1).logprob());
  grpc::ClientContext detokenize;
  v1::DetokenizeRequest back;
  *back.mutable_tokens() = {ids.token_ids.begin(), ids.token_ids.end()};
  v1::DetokenizeResponse said;
  ASSERT_TRUE(stub.Detokenize(&detokenize, back, &said).ok());
  EXPECT_THAT(said.prompt(), HasSubstr(plain.text.at(0).substr(2, 20)));
}

TEST(Grpc, EveryKindOfInputAndEveryOptionDoesWhatItDoesOverHttp) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stub = StubOf(cluster.router->Await("grpc"));
  const std::string prompt = "Once upon a time there was a fox";
  const Outcome plain = Generate(*stub, Greedy(prompt, 24));
  ASSERT_TRUE(plain.status.ok()) << plain.status.error_message();
  EXPECT_FALSE(plain.request_id.empty());
  const Reply http = Complete(cluster.http(), prompt, 24, "");
  EXPECT_EQ(plain.text.at(0), http.text);

  ExpectTheSameByTokenIds(*stub, prompt, plain);
  v1::InferenceRequest several = Greedy(prompt, 8);
  several.set_n(3);
  several.set_temperature(1);
  several.set_seed(7);
  several.set_echo(true);
  const Outcome first = Generate(*stub, several);
  const Outcome second = Generate(*stub, several);
  ASSERT_EQ(first.text.size(), 3u) << first.status.error_message();
  EXPECT_EQ(first.text, second.text);
  EXPECT_NE(first.text.at(0), first.text.at(1));
  for (const auto& [index, each] : first.text) EXPECT_THAT(each, ::testing::StartsWith(prompt));

  v1::InferenceRequest stopped = Greedy(prompt, 24);
  stopped.add_stop(plain.text.at(0).substr(10, 6));
  const Outcome cut = Generate(*stub, stopped);
  EXPECT_EQ(cut.finish.at(0), "stop");
  EXPECT_EQ(cut.text.at(0), plain.text.at(0).substr(0, 10));

  grpc::ClientContext list;
  v1::ListModelsResponse models;
  ASSERT_TRUE(stub->ListModels(&list, {}, &models).ok());
  ASSERT_EQ(models.models_size(), 1);
  EXPECT_EQ(models.models(0).id(), "story-7m");
  EXPECT_EQ(models.models(0).max_model_len(), 2048u);
}

TEST(Grpc, ErrorsHaveTheCanonicalCodeAndTheWordsOfHttp) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stub = StubOf(cluster.router->Await("grpc"));
  const auto refused = [&](const std::function<void(v1::InferenceRequest*)>& change) {
    v1::InferenceRequest request = Greedy("once", 4);
    change(&request);
    return Generate(*stub, request);
  };
  Outcome out = refused([](auto* r) { r->set_temperature(-1); });
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(Trailer(out, "error-param"), "temperature");
  HttpClient http = Connect(cluster.http());
  const auto over_http =
      http.Request("POST", "/v1/completions", R"({"prompt":"once","temperature":-1})");
  EXPECT_EQ(Json::parse(over_http->body)["error"]["message"], out.status.error_message());

  out = refused([](auto* r) { r->set_temperature(std::numeric_limits<double>::quiet_NaN()); });
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  out = refused([](auto* r) { r->set_model("gpt-9"); });
  EXPECT_EQ(out.status.error_code(), grpc::StatusCode::NOT_FOUND);
  EXPECT_EQ(Trailer(out, "error-code"), "model_not_found");
  out = refused([](auto* r) { r->mutable_prompt_token_ids()->add_ids(1 << 20); });
  EXPECT_THAT(out.status.error_message(), HasSubstr("prompt[0]"));
  out = refused([](auto* r) { r->clear_prompt(); });
  EXPECT_THAT(out.status.error_message(), HasSubstr("prompt, prompt_token_ids and chat"));
  out = refused([](auto* r) { r->mutable_chat(); });
  EXPECT_THAT(out.status.error_message(), HasSubstr("messages must not be empty"));
  out = refused([](auto* r) { r->set_max_tokens(0); });
  EXPECT_EQ(Trailer(out, "error-param"), "max_tokens");
  out = refused([](auto* r) { r->set_max_tokens(5000); });
  EXPECT_EQ(Trailer(out, "error-code"), "context_length_exceeded");
  out = refused([](auto* r) { (*r->mutable_logit_bias())[1 << 20] = 1; });
  EXPECT_EQ(Trailer(out, "error-param"), "logit_bias");
}

TEST(Grpc, ACancelledCallAndAPassedDeadlineGiveEveryBlockBack) {
  Cluster cluster({.worker_flags = {"--no-prefix-cache"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stub = StubOf(cluster.router->Await("grpc"));
  const std::string admin = cluster.decode[0]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  v1::InferenceRequest request = Greedy(Prose(60, 1), 1500);
  request.set_ignore_eos(true);
  for (const char* route : {"remote", "local"}) {
    grpc::ClientContext context;
    context.AddMetadata("x-aisp-prefill", route);
    const auto reader = stub->Generate(&context, request);
    v1::InferenceEvent event;
    ASSERT_TRUE(reader->Read(&event));
    context.TryCancel();
    while (reader->Read(&event)) continue;
    EXPECT_EQ(reader->Finish().error_code(), grpc::StatusCode::CANCELLED);
  }
  {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(150));
    const Outcome out = Finish(context, *stub->Generate(&context, request));
    EXPECT_EQ(out.status.error_code(), grpc::StatusCode::DEADLINE_EXCEEDED);
  }
  EXPECT_TRUE(Eventually([&] {
    return Metric(admin, "aisp_num_requests_running") == 0 &&
           Metric(admin, "aisp_kv_blocks_available") == idle;
  }));
  EXPECT_TRUE(Eventually([&] {
    return Metric(cluster.http(), "aisp_active_requests") == 0 &&
           Metric(cluster.http(), "aisp_grpc_requests_total") == 3;
  }));
}

TEST(Grpc, HealthFollowsReadinessAndWatchersAreTold) {
  Cluster cluster({.prefill = 0, .decode = 0});
  const std::string address = cluster.router->Await("grpc");
  const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
  const auto health = Health::NewStub(channel);
  const auto check = [&](const std::string& service) {
    grpc::ClientContext context;
    HealthRequest request;
    request.set_service(service);
    HealthResponse response;
    const grpc::Status status = health->Check(&context, request, &response);
    return status.ok() ? static_cast<int>(response.status()) : -status.error_code();
  };
  EXPECT_EQ(check(""), HealthResponse::NOT_SERVING);
  EXPECT_EQ(check("nothing"), -grpc::StatusCode::NOT_FOUND);
  // Without a worker a request is refused with a retry hint.
  const Outcome refused = Generate(*StubOf(address), Greedy("once", 4));
  EXPECT_EQ(refused.status.error_code(), grpc::StatusCode::UNAVAILABLE);
  EXPECT_GT(std::stoi(Trailer(refused, "retry-after-ms")), 0);

  grpc::ClientContext watch;
  const auto reader = health->Watch(&watch, {});
  HealthResponse response;
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthResponse::NOT_SERVING);
  auto worker = cluster.StartWorker("decode", "decode-0");
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthResponse::SERVING);
  EXPECT_EQ(check("aisp.v1.Inference"), HealthResponse::SERVING);
  worker->Signal(SIGKILL);
  ASSERT_TRUE(reader->Read(&response));
  EXPECT_EQ(response.status(), HealthResponse::NOT_SERVING);
  watch.TryCancel();
  reader->Finish();
}

TEST(Grpc, KeysAreAskedForAndHealthStaysOpen) {
  const TempFile keys("grpc_keys", "# who may come\nfox:sk-fox\nsk-nobody\n");
  Cluster cluster({.prefill = 0, .router_flags = {"--api-keys-file=" + keys.path()}});
  // Registration does not need a key.
  const std::string address = cluster.router->Await("grpc");
  const auto stub = StubOf(address);
  ASSERT_TRUE(cluster.AwaitReady());
  const Outcome none = Generate(*stub, Greedy("once", 4));
  EXPECT_EQ(none.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_EQ(Trailer(none, "error-code"), "invalid_api_key");
  const Outcome wrong = Generate(*stub, Greedy("once", 4), {{"authorization", "Bearer sk-fo"}});
  EXPECT_EQ(wrong.status.error_code(), grpc::StatusCode::UNAUTHENTICATED);
  EXPECT_THAT(wrong.status.error_message(), ::testing::Not(HasSubstr("sk-fo")));
  EXPECT_TRUE(Generate(*stub, Greedy("once", 4), {{"authorization", "Bearer sk-fox"}}).status.ok());
  EXPECT_TRUE(
      Generate(*stub, Greedy("once", 4), {{"authorization", "bearer sk-nobody"}}).status.ok());
  const auto health =
      Health::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  grpc::ClientContext context;
  HealthResponse response;
  EXPECT_TRUE(health->Check(&context, {}, &response).ok());
}

TEST(Grpc, ATakenPortIsNamedWithTheWayOut) {
  Process first(
      {"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--log-level=warning"});
  const std::string taken = first.Await("grpc");
  ASSERT_NE(taken, "");
  const TempFile log("grpc_port_taken.log");
  Process second({"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0",
                  "--grpc-port=" + taken.substr(taken.rfind(':') + 1)},
                 log.path());
  EXPECT_EQ(second.AwaitExit(std::chrono::seconds(20)), 1);
  const std::string text = log.Read();
  EXPECT_THAT(text, HasSubstr("--grpc-port"));
  EXPECT_THAT(text, HasSubstr("--no-grpc"));
}

TEST(Grpc, SigtermLetsARunningCallFinish) {
  Cluster cluster({.prefill = 0, .flags = {"--dtype=f32"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto stub = StubOf(cluster.router->Await("grpc"));
  const Recorded story = RecordedStories().front();
  grpc::ClientContext context;
  const auto reader = stub->Generate(&context, ChatOf(story));
  v1::InferenceEvent event;
  ASSERT_TRUE(reader->Read(&event));
  std::string text = event.choice().text();
  cluster.router->Signal(SIGTERM);
  const Outcome rest = Finish(context, *reader);
  ASSERT_TRUE(rest.status.ok()) << rest.status.error_message();
  EXPECT_EQ(text + rest.text.at(0), story.text);
  EXPECT_EQ(cluster.router->AwaitExit(std::chrono::seconds(10)), 0);
}

}  // namespace
}  // namespace aisp::e2e
