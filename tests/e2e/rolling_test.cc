// Every process is replaced, one by one, under load: no request may fail.
#include <gmock/gmock.h>
#include <unistd.h>

#include <fstream>

#include "net/listen_socket.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/load.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kStreams = 16;

// A cluster whose router's sockets belong to the test, as with a service manager.
class SocketCluster {
 public:
  SocketCluster(int prefill, int decode) {
    http_fd_ = *ListenOn("127.0.0.1", 0, "");
    workers_fd_ = *ListenOn("127.0.0.1", 0, "");
    router = StartRouter();
    for (int i = 0; i < prefill; ++i) workers.push_back(StartWorker("prefill", i));
    for (int i = 0; i < decode; ++i) workers.push_back(StartWorker("decode", i));
  }
  ~SocketCluster() {
    close(http_fd_);
    close(workers_fd_);
  }

  std::unique_ptr<Process> StartRouter() {
    return std::make_unique<Process>(
        std::vector<std::string>{"serve", "--role=router", "--dtype=f32", "--no-grpc",
                                 "--drain-timeout=120s", "--log-level=warning"},
        "",
        std::vector<std::pair<std::string, int>>{{"http-fd", http_fd_},
                                                 {"workers-fd", workers_fd_}});
  }
  std::unique_ptr<Process> StartWorker(const std::string& role, int number) {
    return std::make_unique<Process>(std::vector<std::string>{
        "serve", "--role=" + role, "--worker-id=" + role + "-" + std::to_string(number),
        "--routers=127.0.0.1:" + std::to_string(PortOf(workers_fd_)), "--dtype=f32",
        "--drain-timeout=300ms", "--log-level=warning"});
  }
  bool AwaitReady() {
    for (auto& worker : workers) {
      if (worker->Await("ready").empty()) return false;
    }
    return true;
  }
  std::string http() const { return "127.0.0.1:" + std::to_string(PortOf(http_fd_)); }

  std::unique_ptr<Process> router;
  std::vector<std::unique_ptr<Process>> workers;

 private:
  int http_fd_ = -1;
  int workers_fd_ = -1;
};

TEST(Rolling, EveryProcessIsRestartedUnderLoadAndNoRequestFails) {
  SocketCluster cluster(2, 2);
  ASSERT_TRUE(cluster.AwaitReady());
  StoryLoad load(cluster.http(), kStreams);
  const auto some_more = [&load](int requests) {
    const int before = load.completed();
    return Eventually([&] { return load.completed() >= before + requests; }, seconds(60));
  };
  ASSERT_TRUE(some_more(kStreams));
  // Workers in place: the old one ends before the new one of the same name starts.
  const std::pair<const char*, int> order[] = {
      {"prefill", 0}, {"prefill", 1}, {"decode", 0}, {"decode", 1}};
  for (size_t i = 0; i < cluster.workers.size(); ++i) {
    cluster.workers[i]->Signal(SIGTERM);
    EXPECT_EQ(cluster.workers[i]->AwaitExit(seconds(30)), 0);
    cluster.workers[i] = cluster.StartWorker(order[i].first, order[i].second);
    ASSERT_NE(cluster.workers[i]->Await("ready"), "");
    ASSERT_TRUE(some_more(kStreams / 2));
  }
  // Twice: the workers must reconnect a second time as well.
  for (int turn = 0; turn < 2; ++turn) {
    auto successor = cluster.StartRouter();
    ASSERT_NE(successor->Await("workers"), "");
    cluster.router->Signal(SIGTERM);
    EXPECT_EQ(cluster.router->AwaitExit(seconds(130)), 0);
    cluster.router = std::move(successor);
    ASSERT_TRUE(some_more(kStreams));
  }
  load.Stop();
  EXPECT_THAT(load.failures(), IsEmpty());
  EXPECT_GT(load.completed(), 5 * kStreams);
}

TEST(Rolling, ASocketThatOutlivesItsRouterKeepsClientsWaitingInsteadOfRefusingThem) {
  SocketCluster cluster(0, 1);
  ASSERT_TRUE(cluster.AwaitReady());
  cluster.router->Signal(SIGTERM);
  EXPECT_EQ(cluster.router->AwaitExit(seconds(10)), 0);
  const Recorded story = RecordedStories().front();
  HttpClient client = Connect(cluster.http());  // nobody accepts
  cluster.router = cluster.StartRouter();
  const auto head = OpenChat(client, story.messages, story.completion_tokens, "");
  ASSERT_TRUE(head) << head.error().message;
  EXPECT_EQ(ReadStream(client, *head).text, story.text);
}

TEST(Rolling, AKilledRouterCutsItsStreamsAndItsSuccessorServesWithoutARestartOfWorkers) {
  SocketCluster cluster(1, 1);
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.workers[1]->Await("admin");
  const double idle = Metric(admin, "aisp_kv_blocks_available");
  const Recorded story = RecordedStories().front();
  const Json endless = {{"messages", story.messages},
                        {"temperature", 0},
                        {"max_tokens", 1500},
                        {"ignore_eos", true},
                        {"stream", true}};
  std::vector<HttpClient> clients;
  std::vector<HttpAnswer> heads;
  for (int i = 0; i < 8; ++i) {
    clients.push_back(Connect(cluster.http()));
    auto head = clients.back().Open("POST", "/v1/chat/completions", endless.dump(),
                                    {{"x-aisp-prefill", i % 2 == 0 ? "remote" : "local"}});
    ASSERT_TRUE(head) << head.error().message;
    heads.push_back(std::move(*head));
  }
  cluster.router->Signal(SIGKILL);
  for (size_t i = 0; i < clients.size(); ++i) {
    const Reply reply = ReadStream(clients[i], heads[i]);
    EXPECT_NE(reply.error, "") << "a cut connection, not a silent end";
    EXPECT_FALSE(reply.done);
  }
  EXPECT_TRUE(Eventually([&] {
    return Metric(admin, "aisp_kv_blocks_available") == idle &&
           Metric(admin, "aisp_kv_blocks_quarantined") == 0 &&
           Metric(admin, "aisp_num_requests_running") == 0;
  }));
  cluster.router = cluster.StartRouter();
  EXPECT_EQ(Chat(cluster.http(), story.messages, story.completion_tokens, "remote", true).text,
            story.text);
}

TEST(Rolling, AStoppedRouterGoesOnWhereItWas) {
  SocketCluster cluster(1, 1);
  ASSERT_TRUE(cluster.AwaitReady());
  StoryLoad load(cluster.http(), 8);
  ASSERT_TRUE(Eventually([&] { return load.completed() >= 8; }));
  cluster.router->Signal(SIGSTOP);
  std::this_thread::sleep_for(
      seconds(1));  // longer than the telemetry interval, shorter than a keep-alive
  cluster.router->Signal(SIGCONT);
  const int before = load.completed();
  ASSERT_TRUE(Eventually([&] { return load.completed() >= before + 8; }));
  load.Stop();
  EXPECT_THAT(load.failures(), IsEmpty());
}

TEST(Rolling, UpReplacesEveryProcessOnSighupAndRestartsAKilledRouter) {
  const TempFile log("rolling_up.log");
  Process up({"up", "--port=0", "--prefill=1", "--decode=1", "--dtype=f32", "--no-grpc",
              "--drain-timeout=20s"},
             log.path());
  const auto text = [&] { return log.Read(); };
  const std::string http = up.Await("http", seconds(60));
  ASSERT_NE(http, "") << text();
  {
    StoryLoad load(http, 4);
    ASSERT_TRUE(Eventually([&] { return load.completed() >= 4; }));
    up.Signal(SIGHUP);
    ASSERT_TRUE(
        Eventually([&] { return text().find("every process was replaced") != std::string::npos; },
                   seconds(60)))
        << text();
    const int before = load.completed();
    ASSERT_TRUE(Eventually([&] { return load.completed() >= before + 4; }));
    load.Stop();
    EXPECT_THAT(load.failures(), IsEmpty());
  }
  EXPECT_THAT(Complete(http, Prose(150, 77), 4, "remote").route,
              HasSubstr("decode=decode-0.1 prefill=prefill-0.1"));

  const pid_t router = std::stoi(up.Await("router-pid"));
  kill(router, SIGKILL);
  EXPECT_TRUE(Eventually([&] { return text().find("restarting") != std::string::npos; })) << text();
  const Recorded story = RecordedStories().front();
  EXPECT_EQ(Chat(http, story.messages, story.completion_tokens, "remote", true).text, story.text);
  up.Signal(SIGTERM);
  EXPECT_EQ(up.AwaitExit(seconds(20)), 0);
}

// A child of `up` under this name, or 0.
pid_t ChildOf(pid_t up, const std::string& name) {
  const std::string self = "/proc/" + std::to_string(up);
  std::ifstream children(self + "/task/" + std::to_string(up) + "/children");
  for (pid_t child = 0; children >> child;) {
    std::ifstream words("/proc/" + std::to_string(child) + "/cmdline");
    for (std::string word; std::getline(words, word, '\0');)
      if (word == "--name=" + name) return child;
  }
  return 0;
}

TEST(Rolling, UpServesOnWhileAWorkerDiesAgainAndAgain) {
  const TempFile log("dying_worker.log");
  Process up({"up", "--port=0", "--prefill=1", "--decode=1", "--dtype=f32", "--no-grpc"},
             log.path());
  const std::string http = up.Await("http", seconds(60));
  ASSERT_NE(http, "") << log.Read();
  for (int deaths = 0; deaths < 7; ++deaths) {
    pid_t child = 0;
    ASSERT_TRUE(Eventually([&] { return (child = ChildOf(up.pid(), "prefill-0")) > 0; }))
        << deaths << " deaths: " << log.Read();
    kill(child, SIGKILL);
    ASSERT_TRUE(Eventually([&] { return ChildOf(up.pid(), "prefill-0") != child; }));
  }
  EXPECT_TRUE(Eventually([&] {
    const std::string text = log.Read();
    return text.find("ended 7 times") != std::string::npos ||
           text.find("delay_ms=6400") != std::string::npos;
  }));
  const Recorded story = RecordedStories().front();
  EXPECT_EQ(Chat(http, story.messages, story.completion_tokens, "", true).text, story.text);
  up.Signal(SIGTERM);
  EXPECT_EQ(up.AwaitExit(seconds(20)), 0);
}

}  // namespace
}  // namespace aisp::e2e
