// What may happen to who dials a link, when a hostile process answers.
#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <atomic>
#include <future>
#include <string>

#include "common/threads.h"
#include "net/grpc_links.h"
#include "net/unique_descriptor.h"
#include "tests/net/link_recorder.h"
#include "tests/net/loop_thread.h"
#include "worker.grpc.pb.h"

namespace aisp {
namespace {

constexpr size_t kMaxMessage = 2 << 20;

std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  std::string out;
  for (int i = 2; i >= 0; --i) out += static_cast<char>(payload.size() >> (8 * i));
  out += type;
  out += flags;
  for (int i = 3; i >= 0; --i) out += static_cast<char>(stream >> (8 * i));
  return out + payload;
}

std::string Field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

// Speaks HTTP/2 far enough to answer the first call of one connection.
class HalfServer {
 public:
  HalfServer() {
    sockaddr_in at{};
    at.sin_family = AF_INET;
    at.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(at);
    auto* address = reinterpret_cast<sockaddr*>(&at);
    EXPECT_EQ(bind(listener_.get(), address, size), 0);
    EXPECT_EQ(listen(listener_.get(), 4), 0);
    EXPECT_EQ(getsockname(listener_.get(), address, &size), 0);
    port_ = ntohs(at.sin_port);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

  // Accepts and reads until the call's head has come.
  void AwaitCall() {
    connection_ = UniqueDescriptor(accept(listener_.get(), nullptr, nullptr));
    ASSERT_TRUE(Send(Frame(4, 0, 0, "")));
    ReadExactly(24);  // the preface
    for (char type = 4; type != 1;) {
      const std::string head = ReadExactly(9);
      ASSERT_EQ(head.size(), 9u);
      type = head[3];
      size_t length = 0;
      for (size_t i = 0; i < 3; ++i) length = length << 8 | static_cast<unsigned char>(head[i]);
      ReadExactly(length);
    }
  }
  bool SendHead() {
    const std::string fields = std::string(1, '\x88') + Field("content-type", "application/grpc");
    return Send(Frame(1, 4, 1, fields));
  }
  // The connection ends in the middle of a head.
  void CloseInAHead() {
    EXPECT_TRUE(Send(Frame(1, 0, 1, std::string(1, '\x88') + Field("x", "y"))));
    connection_ = UniqueDescriptor();
  }
  // How many of `frames` of a head that does not end were taken.
  int SendEndlessHead(int frames, bool begun) {
    std::string fields;
    while (fields.size() < 16'000) fields += Field("x-more", std::string(120, 'v'));
    // Behind a head that was whole it is one of trailers.
    const std::string first =
        begun ? Field("x", "y")
              : std::string(1, '\x88') + Field("content-type", "application/grpc");
    if (!Send(Frame(1, 0, 1, first))) return 0;
    for (int i = 0; i < frames; ++i) {
      if (!Send(Frame(9, 0, 1, fields))) return i;
    }
    return frames;
  }

 private:
  bool Send(const std::string& bytes) const {
    for (size_t sent = 0; sent < bytes.size();) {
      const ssize_t n =
          send(connection_.get(), bytes.data() + sent, bytes.size() - sent, MSG_NOSIGNAL);
      if (n <= 0) return false;
      sent += static_cast<size_t>(n);
    }
    return true;
  }
  std::string ReadExactly(size_t size) const {
    std::string out(size, '\0');
    const ssize_t n = recv(connection_.get(), out.data(), size, MSG_WAITALL);
    out.resize(n < 0 ? 0 : static_cast<size_t>(n));
    return out;
  }

  UniqueDescriptor listener_{socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)};
  UniqueDescriptor connection_;
  uint16_t port_ = 0;
};

class DialledLink : public testing::Test {
 protected:
  void Dial(const std::string& address) {
    GrpcLinkOptions options;
    options.max_message_bytes = kMaxMessage;
    loop_.On([&] {
      const Poster post = [this](std::function<void()> fn) { loop_.loop().Post(std::move(fn)); };
      dialer_ = MakeRouterDialer(&worker_, post, options);
      dialer_->Dial(address);
    });
  }
  void TearDown() override {
    loop_.On([&] { dialer_.reset(); });
    loop_.Stop();
  }

  LoopThread loop_;
  WorkerRecorder worker_{&loop_.loop()};
  std::unique_ptr<LinkDialer<v1::WorkerMessage>> dialer_;
};

TEST_F(DialledLink, AHeadWithoutAnEndIsCut) {
  constexpr int kFrames = 100'000;
  for (const bool begun : {false, true}) {
    HalfServer router;
    Dial(router.address());
    router.AwaitCall();
    if (begun) {
      ASSERT_TRUE(router.SendHead());
      ASSERT_TRUE(worker_.AwaitUp());
    }
    EXPECT_LT(router.SendEndlessHead(kFrames, begun), kFrames) << "1.6 GB of a head were taken";
    EXPECT_TRUE(worker_.AwaitDown(begun ? 2 : 1));
  }
}

// Whoever answers may end; gRPC's own look at such a head aborts the process.
TEST_F(DialledLink, AHeadThatIsCutEndsTheLinkAlone) {
  HalfServer router;
  Dial(router.address());
  router.AwaitCall();
  router.CloseInAHead();
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_TRUE(worker_.log().ups.empty());
}

// Answers a link with messages, packed if it is asked for, as older versions did: its head says
// nothing.
class Router final : public v1::RouterControl::CallbackService {
 public:
  Router(bool packs, int messages) : packs_(packs), messages_(messages) {}
  grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage>* Attach(
      grpc::CallbackServerContext* context) override {
    if (packs_) context->set_compression_algorithm(GRPC_COMPRESS_GZIP);
    return new Answer(messages_);
  }

 private:
  class Answer final : public grpc::ServerBidiReactor<v1::WorkerMessage, v1::RouterMessage> {
   public:
    explicit Answer(int left) : left_(left), message_(RouterText(std::string(kSize, 'x'))) {
      if (left_ == 0) {
        StartSendInitialMetadata();
      } else {
        StartWrite(&message_);
      }
    }
    void OnCancel() override { FinishOnce(grpc::Status::CANCELLED); }
    void OnWriteDone(bool ok) override {
      if (ok && --left_ > 0) return StartWrite(&message_);
      if (ok) FinishOnce(grpc::Status::OK);
    }
    void OnDone() override { delete this; }

   private:
    void FinishOnce(const grpc::Status& status) {
      if (!finished_.exchange(true)) Finish(status);
    }
    static constexpr size_t kSize = kMaxMessage - 100;
    int left_;
    const v1::RouterMessage message_;
    std::atomic<bool> finished_{false};
  };
  const bool packs_;
  const int messages_;
};

class Serving {
 public:
  Serving(bool packs, int messages) : service_(packs, messages) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
  }
  ~Serving() {
    server_->Shutdown(std::chrono::system_clock::now());
    server_->Wait();
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  Router service_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

TEST_F(DialledLink, WhatIsLargeAndGetsSomewhereIsTaken) {
  const Serving router(/*packs=*/false, /*messages=*/40);
  Dial(router.address());
  EXPECT_TRUE(worker_.AwaitMessages(40));
  ASSERT_TRUE(worker_.AwaitDown());
}

TEST_F(DialledLink, AnOlderRouterThatSaysNothingIsUp) {
  const Serving router(/*packs=*/false, /*messages=*/0);
  Dial(router.address());
  EXPECT_TRUE(worker_.AwaitUp());
  EXPECT_TRUE(worker_.log().downs.empty());
  loop_.On([&] { dialer_.reset(); });
}

TEST_F(DialledLink, PackedMessagesAreRefused) {
  const Serving router(/*packs=*/true, /*messages=*/1);
  Dial(router.address());
  ASSERT_TRUE(worker_.AwaitDown());
  EXPECT_TRUE(worker_.log().messages.empty());
}

}  // namespace
}  // namespace aisp
