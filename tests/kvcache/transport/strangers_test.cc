// Connections to a pool without a cookie must keep no writer out.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/random.h"
#include "common/strings.h"
#include "common/threads.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/pool_socket.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

constexpr size_t kCrowd = 400;  // more than the limit of any kind
constexpr size_t kWriters = 8;  // of the rig

Instant Later() { return SteadyClock().Now() + kPatience; }

// Stalled connections do not time out in these tests.
class Strangers : public testing::Test {
 protected:
  Strangers() : owner_(Lane::kTcp, nullptr, {.stall_timeout = std::chrono::minutes(10)}) {
    const std::string descriptor = *owner_.transport().Descriptor();
    const auto parts = Split(descriptor, ' ');
    port_ = static_cast<uint16_t>(*ParseInt(parts[2]));
    cookie_ = *ParseCookie(parts[3]);
    const BlockCopy all{0, 0, owner_.pool().size()};
    owner_.transport().AllowEpoch(Epoch(1), {&all, 1});
  }
  UniqueFd Dial() const { return std::move(*ConnectTcp("127.0.0.1", port_, kPatience)); }
  static void ExpectWrites(Side& writer, KvPeerId peer) {
    const BlockCopy copy{0, 0, 4096};
    ASSERT_TRUE(writer.transport().Write(peer, {&copy, 1}, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
  }

  Side owner_;
  uint16_t port_ = 0;
  Hash128 cookie_;
};

TEST_F(Strangers, KeepNoWriterOut) {
  Side writer(Lane::kTcp, nullptr);
  const auto before = writer.transport().Connect(*owner_.transport().Descriptor(), kPatience);
  ASSERT_TRUE(before.has_value());
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) crowd.push_back(Dial());
  const auto amid = writer.transport().Connect(*owner_.transport().Descriptor(), kPatience);
  ASSERT_TRUE(amid.has_value()) << amid.error().message;
  ExpectWrites(writer, *before);
  ExpectWrites(writer, *amid);
  // The first of them were closed, the last ones wait.
  std::byte byte;
  EXPECT_FALSE(ReceiveAll(crowd.front().get(), {&byte, 1}, Later()));
  pollfd last{crowd.back().get(), POLLIN, 0};
  EXPECT_EQ(poll(&last, 1, 0), 0);
}

TEST_F(Strangers, AGreetingThatTricklesInIsCut) {
  Side impatient(Lane::kTcp, nullptr, {.stall_timeout = std::chrono::milliseconds(200)});
  const std::string descriptor = *impatient.transport().Descriptor();
  const auto port = static_cast<uint16_t>(*ParseInt(Split(descriptor, ' ')[2]));
  const UniqueFd socket = std::move(*ConnectTcp("127.0.0.1", port, kPatience));
  const TcpHello hello;
  const auto bytes = std::as_bytes(std::span(&hello, 1));
  size_t sent = 0;
  pollfd state{socket.get(), POLLIN, 0};
  // Each byte arrives well within the limit, all of them well after it.
  for (; sent + 1 < bytes.size() && poll(&state, 1, 100) == 0; ++sent)
    static_cast<void>(SendAll(socket.get(), bytes.subspan(sent, 1), Later()));
  EXPECT_LT(sent + 1, bytes.size()) << "it had time for as many limits as it has bytes";
}

TEST_F(Strangers, AWriterTooManyIsToldSo) {
  std::vector<UniqueFd> writers;
  for (size_t i = 0; i < kWriters; ++i) {
    writers.push_back(Dial());
    const TcpHello hello{.cookie = cookie_};
    ASSERT_TRUE(
        SendAll(writers.back().get(), std::as_bytes(std::span(&hello, 1)), Later()).has_value());
    TcpHelloReply reply;
    ASSERT_TRUE(
        ReceiveAll(writers.back().get(), std::as_writable_bytes(std::span(&reply, 1)), Later()));
    ASSERT_EQ(reply.code, 0u);
  }
  Side writer(Lane::kTcp, nullptr);
  const auto more = writer.transport().Connect(*owner_.transport().Descriptor(), kPatience);
  ASSERT_FALSE(more.has_value());
  EXPECT_EQ(more.error().code, Code::kResourceExhausted);
}

TEST(ShmStrangers, KeepNoWriterOut) {
  Side owner(Lane::kShm, nullptr);
  const std::string descriptor = *owner.transport().Descriptor();
  const auto parts = Split(descriptor, ' ');
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) {
    auto socket = ConnectUnix(parts[1], kPatience);
    ASSERT_TRUE(socket.has_value()) << socket.error().message;
    crowd.push_back(std::move(*socket));
  }
  Side writer(Lane::kShm, nullptr);
  const auto peer = writer.transport().Connect(descriptor, kPatience);
  EXPECT_TRUE(peer.has_value()) << peer.error().message;
}

TEST(ShmStrangers, GarbageHarmsNobody) {
  Side owner(Lane::kShm, nullptr);
  const std::string descriptor = *owner.transport().Descriptor();
  SplitMix64 random(7);
  std::vector<UniqueFd> crowd;
  for (size_t i = 0; i < kCrowd; ++i) {
    auto socket = ConnectUnix(Split(descriptor, ' ')[1], kPatience);
    ASSERT_TRUE(socket.has_value()) << socket.error().message;
    // Some have a greeting's length and its magic number.
    std::string bytes(i % 3 == 0 ? sizeof(PoolHello) : random.Below(4096), 'x');
    for (char& byte : bytes) byte = static_cast<char>(random.Below(256));
    const uint64_t magic = kPoolMagic;
    if (i % 2 == 0 && bytes.size() >= sizeof(magic))
      bytes.replace(0, 8, reinterpret_cast<const char*>(&magic), 8);
    static_cast<void>(send(socket->get(), bytes.data(), bytes.size(), MSG_NOSIGNAL));
    if (i % 4 == 0) crowd.push_back(std::move(*socket));
  }
  Side writer(Lane::kShm, nullptr);
  const auto peer = writer.transport().Connect(descriptor, kPatience);
  EXPECT_TRUE(peer.has_value()) << peer.error().message;
}

// A writer holds the descriptors that other writers map.
TEST(ShmStrangers, AWriterTakesNoMemoryFromOthers) {
  Side owner(Lane::kShm, nullptr);
  const std::string descriptor = *owner.transport().Descriptor();
  Side before(Lane::kShm, nullptr);
  const auto reached = before.transport().Reach(descriptor, kPatience);
  ASSERT_TRUE(reached.has_value()) << reached.error().message;
  const auto hostile = AskForPool("shm1", descriptor, kPatience);
  ASSERT_TRUE(hostile.has_value()) << hostile.error().message;
  for (const UniqueFd* fd : {&hostile->received.pool, &hostile->received.scratch}) {
    EXPECT_NE(ftruncate(fd->get(), 0), 0);
    EXPECT_NE(fcntl(fd->get(), F_ADD_SEALS, F_SEAL_FUTURE_WRITE), 0);
  }
  Side after(Lane::kShm, nullptr);
  const auto later = after.transport().Connect(descriptor, kPatience);
  EXPECT_TRUE(later.has_value()) << later.error().message;
  EXPECT_TRUE((*reached)->Measure(kPatience).has_value());
}

// An owner that answers garbage, or offers memory that it could shrink.
TEST(ShmStrangers, AHostileOwnerIsRefused) {
  const std::string name = "aisp-test-hostile-" + std::to_string(getpid());
  const UniqueFd listener = std::move(*ListenUnix(name));
  const Hash128 cookie = NewCookie();
  const UniqueFd memory(memfd_create("pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  ASSERT_EQ(pwrite(memory.get(), &cookie, sizeof(cookie), 0), 16);
  ASSERT_EQ(ftruncate(memory.get(), 64 << 20), 0);
  constexpr int kKinds = 6;
  Thread owner("hostile", [&] {
    for (int kind = 0; kind < kKinds; ++kind) {
      pollfd state{listener.get(), POLLIN, 0};
      if (poll(&state, 1, 20'000) != 1) return;
      const UniqueFd socket(accept(listener.get(), nullptr, nullptr));
      PoolHello hello;
      if (recv(socket.get(), &hello, sizeof(hello), 0) != sizeof(hello)) return;
      PoolReply reply;
      reply.pool_bytes = 1 << 20;
      const bool with_memory = kind != 1;
      if (kind == 2) reply.pool_bytes = ~uint64_t{0};
      if (kind == 3) reply.magic = 1;
      if (kind == 4) reply.code = ~uint32_t{0};
      if (kind == 5) {
        static_cast<void>(send(socket.get(), "x", 1, MSG_NOSIGNAL));
      } else {
        static_cast<void>(SendReply(socket.get(), reply, with_memory ? memory.get() : -1,
                                    with_memory ? memory.get() : -1));
      }
    }
  });
  for (int kind = 0; kind < kKinds; ++kind) {
    Side writer(Lane::kShm, nullptr);
    const auto peer = writer.transport().Connect(PoolDescriptor("shm1", name, cookie), kPatience);
    EXPECT_FALSE(peer.has_value()) << kind;
  }
}

}  // namespace
}  // namespace aisp
