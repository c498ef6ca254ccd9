// Draining workers: by signal and by `aisp drain`, under load, with and without another worker to
// take over.
#include <gmock/gmock.h>

#include <fstream>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/load.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// Long enough to be running when its worker is drained.
constexpr int kLongAnswer = 900;

std::string DecodeWorkerOf(const std::string& route) {
  const size_t start = route.find("decode=") + 7;
  return route.substr(start, route.find(' ', start) - start);
}

// An answer of exactly kLongAnswer tokens, whether or not the story ends earlier.
Json LongRequest(bool stream) {
  return {{"prompt", Prose(20, 3)},
          {"temperature", 0},
          {"max_tokens", kLongAnswer},
          {"ignore_eos", true},
          {"stream", stream}};
}

TEST(Drain, ADecodeWorkerThatGetsSigtermHandsItsStreamsOverAndNoTokenIsLost) {
  Cluster cluster({.decode = 2, .worker_flags = {"--drain-timeout=50ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient plain = Connect(cluster.http());
  const auto whole = plain.Request("POST", "/v1/completions", LongRequest(false).dump());
  ASSERT_TRUE(whole);
  const std::string expected = Json::parse(whole->body)["choices"][0]["text"];

  HttpClient client = Connect(cluster.http());
  const auto head = client.Open("POST", "/v1/completions", LongRequest(true).dump());
  ASSERT_TRUE(head);
  ASSERT_TRUE(client.NextEvent());
  const std::string worker = DecodeWorkerOf(std::string(head->Header("x-aisp-route")));
  Process& leaving = *cluster.decode[worker == "decode-0" ? 0 : 1];
  leaving.Signal(SIGTERM);
  EXPECT_EQ(leaving.AwaitExit(seconds(20)), 0);
  EXPECT_GE(Metric(cluster.http(), "aisp_request_moves_total"), 1);
  // The first event was read above; a second stream of the same request gives the whole text.
  std::string text;
  for (;;) {
    const auto event = client.NextEvent();
    ASSERT_TRUE(event) << event.error().message;
    if (!*event || (*event)->data == "[DONE]") break;
    const Json body = Json::parse((*event)->data);
    ASSERT_FALSE(body.contains("error")) << body;
    if (!body["choices"].empty()) text += body["choices"][0]["text"];
  }
  ASSERT_GT(text.size(), expected.size() / 2);
  EXPECT_EQ(text, expected.substr(expected.size() - text.size()));
  EXPECT_EQ(Metric(cluster.http(), "aisp_takeovers_total"), 0) << "nothing failed";
}

TEST(Drain, WithoutAnotherDecodeWorkerStreamsAreFinishedWhereTheyAre) {
  Cluster cluster({.worker_flags = {"--drain-timeout=10ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const auto head = client.Open("POST", "/v1/completions", LongRequest(true).dump());
  ASSERT_TRUE(head);
  ASSERT_TRUE(client.NextEvent());
  cluster.decode[0]->Signal(SIGTERM);
  ASSERT_TRUE(
      Eventually([&] { return Connect(cluster.http()).Request("GET", "/ready")->status == 503; }));
  const Reply reply = ReadStream(client, *head);
  EXPECT_EQ(reply.error, "");
  EXPECT_TRUE(reply.done);
  EXPECT_EQ(cluster.decode[0]->AwaitExit(seconds(20)), 0);
}

TEST(Drain, TheCommandDrainsEveryRoleUnderLoadAndTheWorkerStaysUntilItIsTold) {
  Cluster cluster({.prefill = 2,
                   .decode = 2,
                   .flags = {"--dtype=f32"},
                   .worker_flags = {"--drain-timeout=300ms"}});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string router = "--router=http://" + cluster.router->Await("admin");
  StoryLoad load(cluster.http(), 8);
  ASSERT_TRUE(Eventually([&] { return load.completed() >= 8; }));

  EXPECT_THAT(
      RunAisp("drain --list " + router).output,
      ::testing::AllOf(HasSubstr("decode-0: decode ready"), HasSubstr("prefill-1: prefill ready")));
  for (const char* id : {"prefill-0", "decode-0"}) {
    const Ran drained = RunAisp(std::string("drain ") + id + " " + router);
    EXPECT_EQ(drained.code, 0) << drained.output;
    EXPECT_THAT(drained.output, HasSubstr(std::string(id) + ": "));
    EXPECT_THAT(drained.output, HasSubstr("drained"));
  }
  EXPECT_TRUE(cluster.decode[0]->Running()) << "idle until SIGTERM";
  const Ran stopped = RunAisp("drain prefill-1 --stop " + router);
  EXPECT_EQ(stopped.code, 0) << stopped.output;
  EXPECT_EQ(cluster.prefill[1]->AwaitExit(seconds(10)), 0);
  const int before = load.completed();
  ASSERT_TRUE(Eventually([&] { return load.completed() >= before + 8; }));
  load.Stop();
  EXPECT_THAT(load.failures(), IsEmpty());
  cluster.decode[0]->Signal(SIGTERM);
  EXPECT_EQ(cluster.decode[0]->AwaitExit(seconds(10)), 0);
}

TEST(Drain, TheCommandSaysWhatIsWrong) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const Ran unknown = RunAisp("drain decode-7 --router=http://" + cluster.router->Await("admin"));
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.output,
              HasSubstr("no worker 'decode-7' is registered; known: decode-0, prefill-0"));
  EXPECT_EQ(RunAisp("drain").code, 2);
  EXPECT_EQ(RunAisp("drain decode-0 --router=http://127.0.0.1:1").code, 1);
}

TEST(Drain, TheAdminEndpointIsForThisMachineOrForWhoeverHasTheKey) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const auto status = [](const std::string& address, const HttpHeaders& headers) {
    return Connect(address).Request("GET", "/admin/workers", "", headers)->status;
  };
  EXPECT_EQ(status(cluster.router->Await("admin"), {}), 200);
  EXPECT_EQ(status(cluster.router->Await("admin"), {{"origin", "http://example.com"}}), 403);
  EXPECT_EQ(status(cluster.http(), {}), 404);

  const TempFile key("admin_key", "open-sesame\n");
  Process keyed({"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--no-grpc",
                 "--admin=key", "--admin-key-file=" + key.path(), "--log-level=error"});
  const std::string http = keyed.Await("admin");
  ASSERT_NE(http, "");
  EXPECT_EQ(status(http, {}), 401);
  EXPECT_EQ(status(http, {{"authorization", "Bearer open"}}), 401);
  // Clients can send the headers of proxies too: this gives nobody local access.
  EXPECT_EQ(status(http, {{"forwarded", "for=127.0.0.1"}}), 401);
  EXPECT_EQ(status(http, {{"x-forwarded-for", "127.0.0.1"}}), 401);
  EXPECT_EQ(status(http, {{"authorization", "Bearer open-sesame"}}), 200);
  EXPECT_EQ(RunAisp("drain --list --key-file=" + key.path() + " --router=http://" + http).code, 0);
  Process off({"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--no-grpc",
               "--admin=off", "--log-level=error"});
  ASSERT_NE(off.Await("http"), "");
  EXPECT_EQ(off.Await("admin"), "");
  EXPECT_EQ(status(off.Await("http"), {}), 404);
  const Ran open = RunAisp("serve --role=router --port=0 --router-admin-host=0.0.0.0 --no-grpc");
  EXPECT_EQ(open.code, 1);
  EXPECT_THAT(open.output, HasSubstr("router.admin_key_file"));
}

// One id identifies a request in every process's log.
TEST(Drain, ARequestIdLeadsThroughTheLogsOfAllProcesses) {
  const TempFolder folder;
  const std::vector<std::string> common = {"serve", "--log-level=info", "--no-grpc"};
  const auto start = [&](std::vector<std::string> args, const std::string& log) {
    args.insert(args.begin(), common.begin(), common.end());
    return std::make_unique<Process>(args, folder.path() + "/" + log + ".log");
  };
  auto router = start({"--role=router", "--port=0", "--router-listen=127.0.0.1:0"}, "router");
  const std::string workers = "--routers=" + router->Await("workers");
  auto prefill = start({"--role=prefill", workers}, "prefill");
  auto decode = start({"--role=decode", workers}, "decode");
  ASSERT_NE(prefill->Await("ready"), "");
  ASSERT_NE(decode->Await("ready"), "");
  HttpClient client = Connect(router->Await("http"));
  const Json body = {{"prompt", Prose(150, 4)}, {"max_tokens", 8}};
  const auto answer =
      client.Request("POST", "/v1/completions", body.dump(),
                     {{"x-request-id", "life-of-4711"}, {"x-aisp-prefill", "remote"}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->status, 200) << answer->body;
  const auto lines_with_id = [&](const std::string& log) {
    std::ifstream in(folder.path() + "/" + log + ".log");
    int count = 0;
    for (std::string line; std::getline(in, line);)
      count += line.find("life-of-4711") != std::string::npos ? 1 : 0;
    return count;
  };
  for (const char* process : {"router", "prefill", "decode"}) {
    EXPECT_TRUE(Eventually([&] { return lines_with_id(process) > 0; }, seconds(5))) << process;
  }
  // An orderly shutdown of the router logs no warnings.
  client.Close();
  router->Signal(SIGTERM);
  EXPECT_EQ(router->AwaitExit(seconds(10)), 0);
  for (Process* worker : {prefill.get(), decode.get()}) {
    worker->Signal(SIGTERM);
    EXPECT_EQ(worker->AwaitExit(seconds(10)), 0);
  }
  for (const char* process : {"router", "prefill", "decode"}) {
    std::ifstream in(folder.path() + "/" + process + ".log");
    for (std::string line; std::getline(in, line);) {
      EXPECT_EQ(line.find(" W "), std::string::npos) << process << ": " << line;
      EXPECT_EQ(line.find("warning"), std::string::npos) << process << ": " << line;
    }
  }
}

}  // namespace
}  // namespace aisp::e2e
