// A writer over tcp at its calls to the system: that it reads acknowledgements also while it sends,
// and which messages share a packet. This program's sendmsg stands before the C library's.
#include <dlfcn.h>
#include <gtest/gtest.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>
#include <utility>
#include <vector>

#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"
#include "tests/kvcache/transport/tcp_fake_owner.h"

namespace {
// Called after each send, on its thread, with the sender's socket and flags.
std::atomic<const std::function<void(int socket, int flags)>*> after_send{nullptr};
}  // namespace

extern "C" ssize_t sendmsg(int socket, const msghdr* message, int flags) {
  using Send = ssize_t (*)(int, const msghdr*, int);
  static const auto next = reinterpret_cast<Send>(dlsym(RTLD_NEXT, "sendmsg"));
  const ssize_t sent = next(socket, message, flags);
  if (const auto* after = after_send.load(); after != nullptr) (*after)(socket, flags);
  return sent;
}

namespace aisp {
namespace {

constexpr uint64_t kShort = 4096;
constexpr uint64_t kLong = 8192;  // with its header; all of them fit a new connection's window

// An owner that acknowledges each write before the call returns that sent it, or its packet.
class PromptOwner : public testing::Test {
 protected:
  PromptOwner() : writer_(Lane::kTcp, nullptr) {
    FakeOwner owner = ConnectToFakeOwner(writer_.transport(), "127.0.0.1",
                                         [](int) { return TcpHelloReply{.pool_bytes = 1 << 20}; });
    owner_ = std::move(owner.socket);
    peer_ = owner.peer;
    after_send = &on_send_;
  }
  ~PromptOwner() override { after_send = nullptr; }

  void Write() {
    const BlockCopy copy{0, 0, bytes_};
    ASSERT_TRUE(writer_.transport().Write(peer_, {&copy, 1}, Epoch(1)).has_value());
  }
  // One write alone, then the others at once; returns when all have completed.
  void WriteAll() {
    Write();
    AwaitFirst();
    for (size_t i = 1; i < kWrites; ++i) Write();
    AllQueued();
    for (size_t i = 0; i < kWrites; ++i) {
      EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
      Completed(1);
    }
  }
  void OnSend(int sender, int flags) {
    ++sent_in_packet_;
    shared_.push_back((flags & MSG_MORE) != 0);
    // The kernel may hold it back.
    if (shared_.back()) return;
    for (; sent_in_packet_ > 0; --sent_in_packet_) Answer(sender);
    Sent();
  }
  // Receives a message, and returns when its acknowledgement waits at the sender.
  void Answer(int sender) {
    std::vector<std::byte> message(sizeof(TcpWriteHeader) + sizeof(TcpCopy) + bytes_);
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
  }
  // Of the first write: returns when all others are queued, so that they are sent in one go. Of the
  // last: when one of these has completed, in vain if none does before the last is sent.
  void Sent() {
    std::unique_lock lock(mutex_);
    const bool first = std::exchange(first_, false);
    sent_first_ = true;
    changed_.notify_all();
    if (first) changed_.wait_for(lock, kPatience, [&] { return all_queued_; });
    if (shared_.size() == kWrites && bytes_ == kShort)
      in_time_ = changed_.wait_for(lock, kPatience / 4, [&] { return completed_ >= 2; });
  }
  void AwaitFirst() {
    std::unique_lock lock(mutex_);
    EXPECT_TRUE(changed_.wait_for(lock, kPatience, [&] { return sent_first_; }));
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
  uint64_t bytes_ = kShort;  // of each write
  const std::function<void(int, int)> on_send_ = [this](int sender, int flags) {
    OnSend(sender, flags);
  };
  std::mutex mutex_;
  std::condition_variable changed_;
  bool all_queued_ = false;
  bool first_ = true;
  bool sent_first_ = false;
  size_t completed_ = 0;
  bool in_time_ = false;
  // Of the writer's thread; of the test's once all writes have completed.
  int most_unread_ = 0;  // bytes of acknowledgements
  size_t sent_in_packet_ = 0;
  std::vector<bool> shared_;  // by sends: what follows goes into its last packet
};

TEST_F(PromptOwner, IsHeardWhileTheRestOfTheQueueIsSent) {
  WriteAll();
  std::lock_guard lock(mutex_);
  EXPECT_TRUE(in_time_) << "whoever waits for the first hears of it when all are sent";
  // Eight were queued at once, and are read at half of what is left.
  EXPECT_EQ(most_unread_, static_cast<int>(4 * sizeof(TcpAck)));
  EXPECT_EQ(shared_, std::vector<bool>(kWrites, false)) << "short ones are not collected";
}

TEST_F(PromptOwner, GetsTheEndOfALongWriteWithTheNext) {
  bytes_ = kLong;
  WriteAll();
  std::lock_guard lock(mutex_);
  std::vector<bool> expected(kWrites, true);
  expected.front() = expected.back() = false;
  EXPECT_EQ(shared_, expected) << "nothing follows the first and the last";
}

}  // namespace
}  // namespace aisp
