// Connections to a pool that show no cookie: they keep no writer out.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include "common/random.h"
#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/pool_socket.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

constexpr size_t kCrowd = 400;  // more than there are places of any kind
constexpr size_t kWriters = 8;  // of the rig

Instant Later() { return SteadyClock().Now() + kPatience; }

// Nothing that is stalled ends by itself in these tests.
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
  // The first of them have gone, the last ones wait.
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
  // Each byte comes well before the limit, all of them well after it.
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

// What UCX reads from its listener's port before anything of ours is asked.
TEST(UcxStrangers, GarbageOnTheListenerKeepsNoWriterOut) {
  if (const std::string why = WhyNot(Lane::kUcx); !why.empty()) GTEST_SKIP() << why;
  Side owner(Lane::kUcx, nullptr);
  const std::string descriptor = *owner.transport().Descriptor();
  const BlockCopy all{0, 0, owner.pool().size()};
  owner.transport().AllowEpoch(Epoch(1), {&all, 1});
  const auto port = static_cast<uint16_t>(*ParseInt(Split(descriptor, ' ')[2]));
  SplitMix64 random(4);
  for (int round = 0; round < 60; ++round) {
    const UniqueFd socket = std::move(*ConnectTcp("127.0.0.1", port, kPatience));
    std::vector<uint64_t> garbage(1 + random.Below(400));
    for (uint64_t& word : garbage) word = random.Next() >> (round % 3 == 0 ? 40 : 0);
    static_cast<void>(SendAll(socket.get(), std::as_bytes(std::span(garbage)), Later()));
  }
  Side writer(Lane::kUcx, nullptr);
  writer.FillWith(std::byte{7});
  const auto peer = writer.transport().Connect(descriptor, kPatience);
  ASSERT_TRUE(peer.has_value()) << peer.error().message;
  const BlockCopy copy{0, 0, 4096};
  ASSERT_TRUE(writer.transport().Write(*peer, {&copy, 1}, Epoch(1)).has_value());
  EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
  EXPECT_EQ(owner.pool()[4095], std::byte{7});
}

}  // namespace
}  // namespace aisp
