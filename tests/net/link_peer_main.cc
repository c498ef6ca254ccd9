// The other process of the tests that kill one:
//   link_peer dial HOST:PORT    dials a router, sends "hello" and stays
//   link_peer serve HOST:PORT   serves workers, writes its port to stdout, answers each message
//   with "answer"
#include <cstdio>
#include <cstring>

#include "net/grpc_links.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"

namespace aisp {
namespace {

int Dial(const std::string& address) {
  LoopThread loop;
  WorkerRecorder handler(&loop.loop());
  const Poster post = [&](std::function<void()> fn) { loop.loop().Post(std::move(fn)); };
  auto dialer = MakeRouterDialer(&handler, post);
  loop.On([&] { dialer->Send(dialer->Dial(address), WorkerText("hello")); });
  handler.AwaitDown();
  loop.On([&] { dialer.reset(); });
  return 0;
}

int Serve(const std::string& address) {
  LoopThread loop;
  RouterRecorder handler(&loop.loop());
  const Poster post = [&](std::function<void()> fn) { loop.loop().Post(std::move(fn)); };
  GrpcServer server;
  auto* sender = server.ServeRouterControl(&handler, post);
  handler.on_message = [&](LinkId link, const v1::WorkerMessage&) {
    sender->Send(link, RouterText("answer"));
  };
  const Status started = server.Start(address);
  if (!started) return 1;
  std::printf("%d\n", server.port());
  std::fflush(stdout);
  handler.Await([](const auto&) { return false; }, std::chrono::seconds(60));
  return 0;
}

}  // namespace
}  // namespace aisp

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  return std::strcmp(argv[1], "dial") == 0 ? aisp::Dial(argv[2]) : aisp::Serve(argv[2]);
}
