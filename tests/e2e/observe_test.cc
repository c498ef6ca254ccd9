// What an operator can observe of a running server: which request and process a log line belongs
// to, where a request's time went, and the commands that show it.
#include <arpa/inet.h>
#include <gmock/gmock.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <set>
#include <sstream>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

std::vector<std::string> Lines(const std::string& text) {
  std::vector<std::string> lines;
  std::istringstream in(text);
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

std::string CommandLineOf(pid_t pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/cmdline");
  std::string text(std::istreambuf_iterator<char>(in), {});
  std::replace(text.begin(), text.end(), '\0', ' ');
  return text;
}

// The lines of a log that are JSON: those from aisp.
std::vector<Json> JsonLines(const std::string& text) {
  std::vector<Json> out;
  for (const std::string& line : Lines(text)) {
    Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
    if (json.is_object()) out.push_back(std::move(json));
  }
  return out;
}

double Sum(const Json& parts) {
  double sum = 0;
  for (const char* part :
       {"frontend_ms", "queue_ms", "prefill_ms", "transfer_ms", "first_decode_ms"})
    sum += parts.value(part, -1e9);
  return sum;
}

TEST(Observe, EveryLineOfEveryProcessOfUpSaysRoleAndIdAndTheRequestIsInAllOfThem) {
  const TempFile log("up.log");
  Process up({"up", "--port=0", "--prefill=1", "--decode=1", "--log-format=json"}, log.path());
  const std::string http = up.Await("http");
  ASSERT_FALSE(http.empty()) << log.Read();
  HttpClient client = Connect(http);
  const Json body = {{"prompt", Prose(120, 1)}, {"max_tokens", 8}, {"temperature", 0}};
  const auto answer =
      client.Request("POST", "/v1/completions", body.dump(),
                     {{"x-request-id", "observed-1"}, {"x-aisp-prefill", "remote"}});
  ASSERT_TRUE(answer);
  EXPECT_EQ(answer->Header("x-aisp-route-taken"), "decode=decode-0 prefill=prefill-0");
  const Json listed =
      Json::parse(Connect(up.Await("admin")).Request("GET", "/admin/workers")->body);
  for (const Json& worker : listed["workers"]) {
    const std::string command = CommandLineOf(worker["pid"].get<pid_t>());
    EXPECT_THAT(command, HasSubstr("--role=" + worker["role"].get<std::string>()));
    EXPECT_THAT(command, HasSubstr("--name=" + worker["id"].get<std::string>()));
    const std::string url = worker["admin_url"];
    ASSERT_THAT(url, HasSubstr("http://127.0.0.1:"));
    EXPECT_EQ(Connect(url.substr(7)).Request("GET", "/health")->status, 200);
  }
  up.Signal(SIGTERM);
  EXPECT_EQ(up.AwaitExit(seconds(30)), 0);

  std::set<std::string> who, with_request;
  for (const Json& line : JsonLines(log.Read())) {
    ASSERT_TRUE(line.contains("role") && line.contains("id")) << line;
    who.insert(line["role"].get<std::string>() + "/" + line["id"].get<std::string>());
    if (line.value("request", "") == "observed-1") with_request.insert(line["role"]);
    if (line.value("event", "") != "request answered") continue;
    EXPECT_EQ(line["request"], "observed-1");
    EXPECT_NEAR(Sum(line), line["ttft_ms"].get<double>(), 0.01) << line;
    EXPECT_GT(line["prefill_ms"], 0);
    EXPECT_GT(line["kv_blocks_moved"], 0);
    EXPECT_EQ(line["preemptions"], 0);
    EXPECT_THAT(line["route"].get<std::string>(), HasSubstr("prefill=prefill-0"));
    EXPECT_EQ(line["route_taken"], "decode=decode-0 prefill=prefill-0");
    EXPECT_EQ(line["fallback"], "");
  }
  EXPECT_THAT(who,
              ::testing::IsSupersetOf({"router/router", "prefill/prefill-0", "decode/decode-0"}));
  EXPECT_EQ(with_request, (std::set<std::string>{"router", "prefill", "decode"}));
}

TEST(Observe, AWorkerWithoutARouterSaysSoAtOnce) {
  const TempFile log("alone.log");
  Process worker({"serve", "--role=decode", "--worker-id=lonely", "--routers=127.0.0.1:1"},
                 log.path());
  EXPECT_TRUE(Eventually([&] {
    return log.Read().find("role=decode id=lonely router cannot be reached") != std::string::npos;
  })) << log.Read();
  EXPECT_THAT(log.Read(), HasSubstr("router=127.0.0.1:1"));
}

TEST(Observe, WhenThePrefillWorkerIsGoneTheRouteThatWasTakenIsSaidBesideThePredictedOne) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  // It stays registered for a while, but answers nobody.
  cluster.prefill[0]->Signal(SIGKILL);
  HttpClient client = Connect(cluster.http());
  const Json body = {{"prompt", Prose(120, 2)}, {"max_tokens", 4}, {"temperature", 0}};
  const auto answer =
      client.Request("POST", "/v1/completions", body.dump(), {{"x-aisp-prefill", "remote"}});
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->status, 200) << answer->body;
  const Json aisp = Json::parse(answer->body)["usage"]["aisp"];
  EXPECT_THAT(aisp["route_taken"].get<std::string>(), HasSubstr("prefill=local"));
  // If the router has learned of the death first, it predicts no prefill worker at all.
  if (aisp["route"].get<std::string>().find("prefill=prefill") != std::string::npos) {
    EXPECT_NE(aisp["fallback"], "") << aisp;
  }
}

TEST(Observe, PreemptionsOfAllChoicesAreCounted) {
  Cluster cluster({.prefill = 0, .worker_flags = {"--kv-blocks=60"}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const Json body = {{"prompt", Prose(20, 3)}, {"max_tokens", 120}, {"temperature", 1},
                     {"ignore_eos", true},     {"n", 16},           {"seed", 5}};
  const auto answer = client.Request("POST", "/v1/completions", body.dump());
  ASSERT_TRUE(answer);
  ASSERT_EQ(answer->status, 200) << answer->body;
  const Json aisp = Json::parse(answer->body)["usage"]["aisp"];
  // The counter comes from the worker's telemetry.
  const auto counted = [&] {
    const Json workers =
        Json::parse(Connect(cluster.router->Await("admin")).Request("GET", "/admin/workers")->body);
    return workers["workers"][0]["preemptions"].get<int>();
  };
  EXPECT_TRUE(Eventually([&] { return counted() == aisp["preemptions"].get<int>(); }))
      << aisp << " counter " << counted();
  EXPECT_GT(aisp["preemptions"].get<int>(), 0);
}

TEST(Observe, ATraceFollowsARequestThroughEveryProcess) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  const std::string trace_id = "4bf92f3577b34da6a3ce929d0e0e4736";
  const Json body = {{"prompt", Prose(150, 4)}, {"max_tokens", 8}, {"temperature", 0}};
  const auto answer = client.Request("POST", "/v1/completions", body.dump(),
                                     {{"x-request-id", "traced/1"},
                                      {"x-aisp-prefill", "remote"},
                                      {"traceparent", "00-" + trace_id + "-00f067aa0ba902b7-01"}});
  ASSERT_TRUE(answer);
  EXPECT_THAT(std::string(answer->Header("traceparent")),
              ::testing::MatchesRegex("00-" + trace_id + "-[0-9a-f]+-01"));
  const auto told =
      Connect(cluster.router->Await("admin")).Request("GET", "/admin/trace/traced%2F1");
  ASSERT_EQ(told->status, 200) << told->body;
  const Json trace = Json::parse(told->body);
  EXPECT_EQ(trace["trace"], trace_id);
  EXPECT_EQ(trace["finished"], true);
  std::map<std::string, Json> spans;
  for (const Json& span : trace["spans"]) spans[span["name"]] = span;
  for (const char* name : {"request", "receive", "prepare", "admit", "route", "queue", "prefill",
                           "chunk", "transfer", "decode", "stream"}) {
    EXPECT_EQ(spans.count(name), 1u) << name << " is missing in " << trace.dump(1);
  }
  EXPECT_EQ(spans.count("first decode"), 0u) << "the first token came with the KV";
  EXPECT_EQ(spans["prefill"]["attributes"]["aisp.worker"], "prefill-0");
  EXPECT_EQ(spans["chunk"]["attributes"]["aisp.worker"], "prefill-0");
  EXPECT_EQ(spans["decode"]["attributes"]["aisp.worker"], "decode-0");
  const double whole = spans["request"]["ms"];
  for (const Json& span : trace["spans"]) {
    EXPECT_GE(span["start_ms"], 0) << span;
    // Workers' reports are dated by the time of their request; the tolerance is a message in
    // transit.
    EXPECT_LE(span["start_ms"].get<double>() + span["ms"].get<double>(), whole + 1) << span;
  }
  const Ran printed = RunAisp("trace traced/1 --router http://" + cluster.router->Await("admin"));
  EXPECT_EQ(printed.code, 0) << printed.output;
  EXPECT_THAT(printed.output, AllOf(HasSubstr("request traced/1"), HasSubstr("  chunk"),
                                    HasSubstr("worker=prefill-0"), HasSubstr("transfer")));
  EXPECT_THAT(RunAisp("trace --router http://" + cluster.router->Await("admin")).output,
              HasSubstr("traced/1"));
  const Ran unknown = RunAisp("trace nobody --router http://" + cluster.router->Await("admin"));
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT(unknown.output, HasSubstr("x-request-id"));
}

TEST(Observe, AMalformedTraceparentIsANewTraceAndNoError) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  for (const char* bad : {"garbage", "00-00000000000000000000000000000000-00f067aa0ba902b7-01",
                          "00-4BF92F3577B34DA6A3CE929D0E0E4736-00f067aa0ba902b7-01"}) {
    const auto answer = client.Request(
        "POST", "/v1/completions", R"({"prompt":"A duck","max_tokens":2})", {{"traceparent", bad}});
    ASSERT_TRUE(answer);
    EXPECT_EQ(answer->status, 200);
    const std::string out(answer->Header("traceparent"));
    EXPECT_THAT(out, ::testing::MatchesRegex("00-[0-9a-f]+-[0-9a-f]+-01"));
    EXPECT_THAT(out, Not(HasSubstr("0000000000000000")));
  }
  // A missing collector slows nothing down; otlp_test.py tests with one.
}

TEST(Observe, StatusTopAndDoctorShowARunningHouse) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  ASSERT_EQ(Complete(cluster.http(), Prose(100, 5), 8, "remote").status, 200);
  const std::string router = " --router http://" + cluster.router->Await("admin");
  const Ran status = RunAisp("status" + router);
  EXPECT_EQ(status.code, 0) << status.output;
  EXPECT_THAT(status.output,
              AllOf(HasSubstr("prefill-0 prefill"), HasSubstr("decode-0  decode"),
                    HasSubstr("prefill-0 -> decode-0 over shm"), Not(HasSubstr("\x1b"))));
  const Ran top = RunAisp("top --count 2 --interval 50" + router);
  EXPECT_EQ(top.code, 0) << top.output;
  EXPECT_THAT(top.output, HasSubstr("tokens/s"));
  EXPECT_THAT(RunAisp("drain --list" + router).output,
              HasSubstr("pid " + std::to_string(cluster.decode[0]->pid()) + ", http://127.0.0.1:"));
  const Ran doctor = RunAisp("doctor --port 0 --grpc-port 0" + router);
  EXPECT_THAT(doctor.output, AllOf(HasSubstr("memlock"), HasSubstr("CPU governor"),
                                   HasSubstr("versions"), HasSubstr("decode-0, prefill-0")));
  const Ran nobody = RunAisp("status --router http://127.0.0.1:1");
  EXPECT_EQ(nobody.code, 1);
  EXPECT_EQ(RunAisp("top --router http://127.0.0.1:1").code, 1);
}

TEST(Observe, ThePortOfClientsHasNothingOfTheOperators) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  for (const char* path : {"/", "/page/page.js", "/admin/overview", "/admin/workers",
                           "/admin/trace", "/admin/workers/nobody"}) {
    const auto answer = client.Request("GET", path);
    EXPECT_EQ(answer->status, 404) << path;
    EXPECT_THAT(answer->body, Not(HasSubstr("decode-0"))) << path;
  }
  EXPECT_EQ(client.Request("POST", "/admin/workers/decode-0/drain")->status, 404);
  // The page sends completions to its own origin.
  EXPECT_EQ(Complete(cluster.router->Await("admin"), Prose(20, 5), 4, "local").status, 200);
}

TEST(Observe, ThePageShowsNothingWithoutTheKey) {
  const TempFile key("admin.key", "sesame\n");
  Cluster cluster(
      {.prefill = 0,
       .router_flags = {"--router.admin=key", "--router.admin_key_file=" + key.path()}});
  ASSERT_TRUE(cluster.AwaitReady());
  HttpClient client = Connect(cluster.router->Await("admin"));
  const auto page = client.Request("GET", "/");
  EXPECT_EQ(page->status, 200);
  EXPECT_THAT(page->body, HasSubstr("<!doctype html>"));
  EXPECT_THAT(page->body, Not(HasSubstr("http://")));
  EXPECT_THAT(page->body, Not(HasSubstr("https://")));
  EXPECT_THAT(std::string(page->Header("content-security-policy")),
              HasSubstr("default-src 'none'"));
  EXPECT_EQ(client.Request("GET", "/page/page.js")->status, 200);
  EXPECT_EQ(client.Request("GET", "/page/page.css")->status, 200);
  EXPECT_EQ(client.Request("GET", "/page/other")->status, 404);
  EXPECT_EQ(client.Request("POST", "/")->status, 405);
  EXPECT_EQ(client.Request("GET", "/admin/overview")->status, 401);
  EXPECT_EQ(client.Request("GET", "/admin/trace")->status, 401);
  EXPECT_EQ(
      client.Request("GET", "/admin/overview", "", {{"authorization", "Bearer sesame"}})->status,
      200);
}

// The status that a browser gets which reached the router under the name `host` (DNS rebinding).
// Its page may set `agent`.
int StatusOfBrowser(const std::string& address, const std::string& host,
                    const std::string& agent = "Mozilla/5.0 (X11)") {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr);
  const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (connect(fd, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0) ADD_FAILURE() << address;
  const std::string text = "GET /admin/workers HTTP/1.1\r\nHost: " + host +
                           "\r\nUser-Agent: " + agent + "\r\nConnection: close\r\n\r\n";
  EXPECT_EQ(write(fd, text.data(), text.size()), static_cast<ssize_t>(text.size()));
  std::string answer(64, '\0');
  answer.resize(static_cast<size_t>(std::max<ssize_t>(0, read(fd, answer.data(), answer.size()))));
  close(fd);
  return answer.starts_with("HTTP/1.1 ") ? std::stoi(answer.substr(9, 3)) : 0;
}

TEST(Observe, ABrowserThatWasLedToLoopbackByAnotherNameIsRefused) {
  Cluster cluster({.prefill = 0});
  ASSERT_TRUE(cluster.AwaitReady());
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), cluster.router->Await("admin")), 200);
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), "localhost:80"), 200);
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), "[::1]:8080"), 200);
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), "evil.example:8080"), 403);
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), "127.0.0.1.evil.example"), 403);
  EXPECT_EQ(StatusOfBrowser(cluster.router->Await("admin"), "evil.example:8080", "curl/8"), 403);
}

}  // namespace
}  // namespace aisp::e2e
