// gRPC links to processes that die or stop responding, and addresses that cannot be listened on.
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <gmock/gmock.h>

#include "net/grpc_links.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"

extern char** environ;

namespace aisp {
namespace {

using ::testing::HasSubstr;

// tests/net/link_peer_main.cc as a child process.
class PeerProcess {
 public:
  PeerProcess(const std::string& mode, const std::string& address) {
    int out[2];
    EXPECT_EQ(pipe(out), 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, out[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, out[0]);
    const char* argv[] = {AISP_LINK_PEER, mode.c_str(), address.c_str(), nullptr};
    EXPECT_EQ(
        posix_spawn(&pid_, AISP_LINK_PEER, &actions, nullptr, const_cast<char**>(argv), environ),
        0);
    posix_spawn_file_actions_destroy(&actions);
    close(out[1]);
    stdout_ = out[0];
  }
  ~PeerProcess() {
    Signal(SIGKILL);
    waitpid(pid_, nullptr, 0);
    close(stdout_);
  }
  void Signal(int signal) { kill(pid_, signal); }
  std::string ReadLine() {
    std::string line;
    for (char c = 0; read(stdout_, &c, 1) == 1 && c != '\n';) line.push_back(c);
    return line;
  }

 private:
  pid_t pid_ = -1;
  int stdout_ = -1;
};

class LinkDeath : public ::testing::Test {
 protected:
  Poster PosterOfLoop() {
    return [this](std::function<void()> fn) { loop_.loop().Post(std::move(fn)); };
  }
  // Pings at the highest rate that gRPC still sends.
  static GrpcLinkOptions QuickPings() {
    GrpcLinkOptions options;
    options.keepalive_interval = std::chrono::milliseconds(500);
    options.keepalive_timeout = std::chrono::milliseconds(500);
    return options;
  }

  LoopThread loop_;
};

TEST_F(LinkDeath, TheRouterHearsOnceThatAWorkerProcessWasKilled) {
  RouterRecorder router(&loop_.loop());
  GrpcServer server;
  server.ServeRouterControl(&router, PosterOfLoop());
  ASSERT_TRUE(server.Start("127.0.0.1:0"));
  PeerProcess worker("dial", "127.0.0.1:" + std::to_string(server.port()));
  ASSERT_TRUE(router.AwaitMessages(1));
  worker.Signal(SIGKILL);
  ASSERT_TRUE(router.AwaitDown());
  EXPECT_EQ(router.log().downs[0].second.code, Code::kUnavailable);
  loop_.On([&] { server.Shutdown(std::chrono::milliseconds(100)); });
  EXPECT_EQ(router.log().downs.size(), 1u);
  EXPECT_EQ(router.log().violations, 0);
}

TEST_F(LinkDeath, TheRouterHearsThatAWorkerProcessFellSilent) {
  RouterRecorder router(&loop_.loop());
  GrpcServer server;
  server.ServeRouterControl(&router, PosterOfLoop(), QuickPings());
  ASSERT_TRUE(server.Start("127.0.0.1:0"));
  PeerProcess worker("dial", "127.0.0.1:" + std::to_string(server.port()));
  ASSERT_TRUE(router.AwaitMessages(1));
  worker.Signal(SIGSTOP);
  EXPECT_TRUE(router.AwaitDown());
  loop_.On([&] { server.Shutdown(std::chrono::milliseconds(100)); });
}

TEST_F(LinkDeath, AWorkerFindsARestartedRouterAgain) {
  WorkerRecorder worker(&loop_.loop());
  auto dialer = MakeRouterDialer(&worker, PosterOfLoop(), QuickPings());
  std::string address;
  const auto dial_and_ask = [&] {
    loop_.On([&] { dialer->Send(dialer->Dial(address), WorkerText("ask")); });
  };
  {
    PeerProcess router("serve", "127.0.0.1:0");
    address = "127.0.0.1:" + router.ReadLine();
    dial_and_ask();
    ASSERT_TRUE(worker.AwaitMessages(1));
    router.Signal(SIGKILL);
    ASSERT_TRUE(worker.AwaitDown(1));
  }
  dial_and_ask();
  ASSERT_TRUE(worker.AwaitDown(2));
  EXPECT_EQ(worker.log().downs[1].second.code, Code::kUnavailable);
  EXPECT_THAT(worker.log().downs[1].second.message, HasSubstr(address));
  PeerProcess router("serve", address);
  ASSERT_EQ("127.0.0.1:" + router.ReadLine(), address);
  dial_and_ask();
  EXPECT_TRUE(worker.AwaitMessages(2));
  loop_.On([&] { dialer.reset(); });
  EXPECT_EQ(worker.log().violations, 0);
}

TEST_F(LinkDeath, AWorkerHearsThatItsRouterFellSilent) {
  WorkerRecorder worker(&loop_.loop());
  auto dialer = MakeRouterDialer(&worker, PosterOfLoop(), QuickPings());
  PeerProcess router("serve", "127.0.0.1:0");
  const std::string address = "127.0.0.1:" + router.ReadLine();
  loop_.On([&] { dialer->Send(dialer->Dial(address), WorkerText("ask")); });
  ASSERT_TRUE(worker.AwaitMessages(1));
  router.Signal(SIGSTOP);
  EXPECT_TRUE(worker.AwaitDown());
  loop_.On([&] { dialer.reset(); });
}

TEST_F(LinkDeath, AServerNamesTheTakenAddressAndTheWayOut) {
  RouterRecorder router(&loop_.loop());
  GrpcServer first;
  first.ServeRouterControl(&router, PosterOfLoop());
  ASSERT_TRUE(first.Start("127.0.0.1:0"));
  const std::string taken = "127.0.0.1:" + std::to_string(first.port());
  GrpcServer second;
  second.ServeRouterControl(&router, PosterOfLoop());
  const Status started = second.Start(taken);
  ASSERT_FALSE(started);
  EXPECT_THAT(started.error().message, HasSubstr(taken));
  EXPECT_THAT(started.error().message, HasSubstr("choose another port"));
  GrpcServer third;
  third.ServeRouterControl(&router, PosterOfLoop());
  EXPECT_FALSE(third.Start("nonsense"));
}

TEST_F(LinkDeath, AMessageOverTheLimitTakesTheLinkDownAndSaysWhy) {
  GrpcLinkOptions options;
  options.max_message_bytes = 100 << 10;
  RouterRecorder router(&loop_.loop());
  WorkerRecorder worker(&loop_.loop());
  GrpcServer server;
  server.ServeRouterControl(&router, PosterOfLoop(), options);
  ASSERT_TRUE(server.Start("127.0.0.1:0"));
  auto dialer = MakeRouterDialer(&worker, PosterOfLoop(), options);
  LinkId link;
  loop_.On([&] {
    link = dialer->Dial("127.0.0.1:" + std::to_string(server.port()));
    dialer->Send(link, WorkerText(std::string(90 << 10, 'x')));
    dialer->Send(link, WorkerText("small"));
  });
  ASSERT_TRUE(router.AwaitMessages(2));
  loop_.On([&] { dialer->Send(link, WorkerText(std::string(110 << 10, 'x'))); });
  ASSERT_TRUE(worker.AwaitDown());
  EXPECT_THAT(worker.log().downs[0].second.message, HasSubstr("larger than the limit of 102400"));
  ASSERT_TRUE(router.AwaitDown());
  loop_.On([&] {
    dialer.reset();
    server.Shutdown(std::chrono::milliseconds(100));
  });
}

// The other service: decode workers dial prefill workers.
TEST_F(LinkDeath, DecodeAndPrefillWorkersSpeakOverTheirOwnService) {
  struct Prefill final : LinkHandler<v1::DecodeToPrefill> {
    LinkSender<v1::PrefillToDecode>* sender = nullptr;
    void OnLinkUp(LinkId, const std::string&) override {}
    void OnMessage(LinkId link, v1::DecodeToPrefill m) override {
      v1::PrefillToDecode answer;
      answer.mutable_fence()->set_epoch(m.revoke().epoch());
      sender->Send(link, std::move(answer));
    }
    void OnLinkDown(LinkId, const Error&) override {}
  } prefill;
  struct Decode final : LinkHandler<v1::PrefillToDecode> {
    std::promise<uint64_t> epoch;
    void OnLinkUp(LinkId, const std::string&) override {}
    void OnMessage(LinkId, v1::PrefillToDecode m) override { epoch.set_value(m.fence().epoch()); }
    void OnLinkDown(LinkId, const Error&) override {}
  } decode;
  GrpcServer server;
  prefill.sender = server.ServeKvPeer(&prefill, PosterOfLoop());
  ASSERT_TRUE(server.Start("127.0.0.1:0"));
  auto dialer = MakeKvPeerDialer(&decode, PosterOfLoop());
  loop_.On([&] {
    v1::DecodeToPrefill message;
    message.mutable_revoke()->set_epoch(7);
    dialer->Send(dialer->Dial("127.0.0.1:" + std::to_string(server.port())), std::move(message));
  });
  EXPECT_EQ(decode.epoch.get_future().get(), 7u);
  loop_.On([&] {
    dialer.reset();
    server.Shutdown(std::chrono::milliseconds(100));
  });
}

}  // namespace
}  // namespace aisp
