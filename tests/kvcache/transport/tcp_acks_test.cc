// When a writer over tcp reads acknowledgements: also while it sends. The test sees each of its
// sends, because this program's sendmsg stands before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"

namespace {
// Called after each send, on its thread. The socket is the sender's.
std::atomic<const std::function<void(int socket)>*> after_send{nullptr};
}  // namespace

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using Send = ssize_t (*)(int, const msghdr*, int);
  static const auto next = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "sendmsg"));
  const ssize_t sent = next(socket, message, flags);
  if (const auto* after = after_send.load(); after != nullptr) (*after)(socket);
  return sent;
}

namespace aisp {
namespace {

constexpr uint64_t kBytes = 4096;
constexpr size_t kMessage = sizeof(TcpWriteHeader) + sizeof(TcpCopy) + kBytes;

Instant Later() { return SteadyClock().Now() + kPatience; }

template <typename T>
std::span<std::byte> Room(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// An owner that acknowledges each write before the call returns that sent it.
class PromptOwner : public testing::Test {
 protected:
  PromptOwner() : writer_(Lane::kTcp, nullptr) {
    const UniqueFd listen = std::move(*ListenTcp("127.0.0.1", 0));
    Thread greeter("fake-owner", [&] {
      pollfd state{listen.get(), POLLIN, 0};
      EXPECT_EQ(poll(&state, 1, static_cast<int>(ToMs(kPatience))), 1);
      owner_ = UniqueFd(accept4(listen.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
      TcpHello hello;
      EXPECT_TRUE(ReceiveAll(owner_.get(), Room(hello), Later()).has_value());
      TcpHelloReply reply{.pool_bytes = 1 << 20};
      EXPECT_TRUE(SendAll(owner_.get(), Room(reply), Later()).has_value());
    });
    peer_ = *writer_.transport().Connect(
        "tcp1 127.0.0.1 " + std::to_string(*LocalPort(listen.get())) + " " + NewCookie().ToHex(),
        kPatience);
    greeter.Join();
    after_send = &answer_;
  }
  ~PromptOwner() override { after_send = nullptr; }

  void Write() {
    const BlockCopy copy{0, 0, kBytes};
    ASSERT_TRUE(writer_.transport().Write(peer_, {&copy, 1}, Epoch(1)).has_value());
  }
  // Receives the message, and returns when its acknowledgement waits at the sender.
  void Answer(int sender) {
    std::array<std::byte, kMessage> message;
    EXPECT_TRUE(ReceiveAll(owner_.get(), message, Later()).has_value());
    TcpWriteHeader header;
    std::memcpy(&header, message.data(), sizeof(header));
    TcpAck ack{.id = header.id};
    int before = 0;
    ASSERT_EQ(ioctl(sender, FIONREAD, &before), 0);
    EXPECT_TRUE(SendAll(owner_.get(), Room(ack), Later()).has_value());
    int unread = before;
    for (const Instant limit = Later(); unread == before && SteadyClock().Now() < limit;)
      ASSERT_EQ(ioctl(sender, FIONREAD, &unread), 0);
    most_unread_ = std::max(most_unread_, unread);
    Sent();
  }
  // Of the first write: returns when all others are queued, so that they are sent in one go. Of the
  // last: when one of these has completed, in vain if none does before the last is sent.
  void Sent() {
    std::unique_lock lock(mutex_);
    ++sent_;
    changed_.notify_all();
    if (sent_ == 1) changed_.wait_for(lock, kPatience, [&] { return all_queued_; });
    if (sent_ == kWrites)
      in_time_ = changed_.wait_for(lock, kPatience / 4, [&] { return completed_ >= 2; });
  }
  void AwaitFirst() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return sent_ == 1; }));
  }
  void Completed(size_t count) {
    std::lock_guard lock(mutex_);
    completed_ += count;
    changed_.notify_all();
  }
  void AllQueued() {
    std::lock_guard lock(mutex_);
    all_queued_ = true;
    changed_.notify_all();
  }

  static constexpr size_t kWrites = 9;
  Side writer_;
  UniqueFd owner_;
  KvPeerId peer_;
  const std::function<void(int)> answer_ = [this](int sender) { Answer(sender); };
  std::mutex mutex_;
  std::condition_variable changed_;
  bool all_queued_ = false;
  size_t sent_ = 0;
  size_t completed_ = 0;
  bool in_time_ = false;
  int most_unread_ = 0;  // bytes of acknowledgements; of the writer's thread, then of the test's
};

TEST_F(PromptOwner, IsHeardWhileTheRestOfTheQueueIsSent) {
  Write();
  AwaitFirst();
  for (size_t i = 1; i < kWrites; ++i) Write();
  AllQueued();
  for (size_t i = 0; i < kWrites; ++i) {
    EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
    Completed(1);
  }
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(in_time_) << "whoever waits for the first hears of it when all are sent";
  // Eight were queued at once, and are read at half of what is left.
  EXPECT_EQ(most_unread_, static_cast<int>(4 * sizeof(TcpAck)));
}

}  // namespace
}  // namespace aisp
