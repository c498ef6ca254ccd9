// The tcp transport against peers that are broken, slow, hostile or not the expected ones.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>

#include "common/random.h"
#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

using testing::HasSubstr;

constexpr Duration kStall = std::chrono::milliseconds(300);

Instant Later() { return SteadyClock().Now() + kPatience; }

template <typename T>
std::span<const std::byte> Bytes(const T& value) {
  return std::as_bytes(std::span(&value, 1));
}
template <typename T>
std::span<std::byte> Room(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// An owner, and raw connections to it.
class TcpOwnerFaults : public testing::Test {
 protected:
  TcpOwnerFaults() : owner_(Lane::kTcp, nullptr, {.stall_timeout = kStall}) {
    owner_.FillWith(std::byte{0});
    const std::string descriptor = *owner_.transport().Descriptor();
    const auto parts = Split(descriptor, ' ');
    port_ = static_cast<uint16_t>(*ParseInt(parts[2]));
    cookie_ = *ParseCookie(parts[3]);
    const BlockCopy all{0, 0, owner_.pool().size()};
    owner_.transport().AllowEpoch(Epoch(1), {&all, 1});
  }
  UniqueFd Dial() { return std::move(*ConnectTcp("127.0.0.1", port_, kPatience)); }
  UniqueFd DialAndGreet() {
    UniqueFd socket = Dial();
    EXPECT_TRUE(SendAll(socket.get(), Bytes(TcpHello{.cookie = cookie_}), Later()).has_value());
    TcpHelloReply reply;
    EXPECT_TRUE(ReceiveAll(socket.get(), Room(reply), Later()).has_value());
    EXPECT_EQ(reply.code, 0u);
    EXPECT_EQ(reply.pool_bytes, owner_.pool().size());
    return socket;
  }
  // The owner closes without sending another byte.
  static bool HungUp(int socket) {
    std::byte byte;
    const Status status = ReceiveAll(socket, {&byte, 1}, Later());
    return !status && status.error().code == Code::kUnavailable;
  }
  void ExpectServes() {
    Side writer(Lane::kTcp, nullptr);
    writer.FillWith(std::byte{7});
    const Result<KvPeerId> peer =
        writer.transport().Connect(*owner_.transport().Descriptor(), kPatience);
    ASSERT_TRUE(peer.has_value());
    const BlockCopy copy{0, 0, 4096};
    ASSERT_TRUE(writer.transport().Write(*peer, {&copy, 1}, Epoch(1)).has_value());
    EXPECT_TRUE(writer.Await(1).at(0).status.has_value());
    EXPECT_EQ(owner_.pool()[4095], std::byte{7});
  }

  Side owner_;
  uint16_t port_ = 0;
  Hash128 cookie_;
};

TEST_F(TcpOwnerFaults, GarbageOnThePortIsDisconnectedAndHarmless) {
  SplitMix64 random(3);
  for (int round = 0; round < 50; ++round) {
    const UniqueFd socket = round % 2 == 0 ? Dial() : DialAndGreet();
    std::vector<uint64_t> garbage(16 + random.Below(200));
    for (uint64_t& word : garbage) word = random.Next();
    static_cast<void>(SendAll(socket.get(), std::as_bytes(std::span(garbage)), Later()));
    EXPECT_TRUE(HungUp(socket.get()));
  }
  EXPECT_EQ(std::ranges::count(owner_.pool(), std::byte{0}),
            static_cast<ptrdiff_t>(owner_.pool().size()));
  ExpectServes();
}

TEST_F(TcpOwnerFaults, AnotherCookieIsRefused) {
  std::string descriptor = *owner_.transport().Descriptor();
  descriptor.back() = descriptor.back() == '0' ? '1' : '0';
  Side writer(Lane::kTcp, nullptr);
  const Result<KvPeerId> peer = writer.transport().Connect(descriptor, kPatience);
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, Code::kPermissionDenied);
}

TEST_F(TcpOwnerFaults, SilenceBeforeTheGreetingEndsTheConnection) {
  const UniqueFd socket = Dial();
  EXPECT_TRUE(HungUp(socket.get()));
  ExpectServes();
}

TEST_F(TcpOwnerFaults, SilenceInTheMiddleOfAWriteEndsTheConnection) {
  const UniqueFd socket = DialAndGreet();
  const TcpWriteHeader header{.id = 1, .epoch = 1, .payload_bytes = 1000, .copies = 1};
  const TcpCopy copy{0, 1000};
  ASSERT_TRUE(SendAll(socket.get(), Bytes(header), Later()).has_value());
  ASSERT_TRUE(SendAll(socket.get(), Bytes(copy), Later()).has_value());
  ASSERT_TRUE(SendAll(socket.get(), Bytes(header), Later())
                  .has_value());  // 48 bytes of payload, then nothing
  EXPECT_TRUE(HungUp(socket.get()));
  ExpectServes();
}

TEST_F(TcpOwnerFaults, SilenceBetweenWritesIsFine) {
  const UniqueFd socket = DialAndGreet();
  pollfd state{socket.get(), POLLIN, 0};
  EXPECT_EQ(poll(&state, 1, static_cast<int>(3 * ToMs(kStall))), 0) << "hung up on an idle writer";
}

TEST_F(TcpOwnerFaults, APayloadThatTricklesInIsNoSilence) {
  const UniqueFd socket = DialAndGreet();
  const std::vector<std::byte> payload(4096, std::byte{9});
  const TcpWriteHeader header{.id = 3, .epoch = 1, .payload_bytes = payload.size(), .copies = 1};
  ASSERT_TRUE(SendAll(socket.get(), Bytes(header), Later()).has_value());
  ASSERT_TRUE(SendAll(socket.get(), Bytes(TcpCopy{0, payload.size()}), Later()).has_value());
  const std::span<const std::byte> all(payload);
  constexpr size_t kDrops = 12;
  for (size_t i = 0; i < kDrops; ++i) {
    ASSERT_TRUE(SendAll(socket.get(), all.subspan(i, 1), Later()).has_value());
    pollfd state{socket.get(), POLLIN, 0};
    ASSERT_EQ(poll(&state, 1, static_cast<int>(ToMs(kStall) / 4)), 0) << "hung up after " << i;
  }
  ASSERT_TRUE(SendAll(socket.get(), all.subspan(kDrops), Later()).has_value());
  TcpAck ack;
  ASSERT_TRUE(ReceiveAll(socket.get(), Room(ack), Later()).has_value());
  EXPECT_EQ(ack.code, 0u);
  EXPECT_EQ(owner_.pool()[payload.size() - 1], std::byte{9});
}

TEST_F(TcpOwnerFaults, LiesAboutSizesAreGarbage) {
  for (const TcpWriteHeader& header :
       {TcpWriteHeader{.id = 1, .epoch = 1, .payload_bytes = 8, .copies = kTcpMaxCopies + 1},
        TcpWriteHeader{.id = 1, .epoch = 1, .payload_bytes = UINT64_MAX, .copies = 1},
        TcpWriteHeader{.id = 1, .epoch = 1, .payload_bytes = 17, .copies = 1},
        TcpWriteHeader{.flags = kTcpProbe, .id = 1, .payload_bytes = 8, .copies = 1}}) {
    const UniqueFd socket = DialAndGreet();
    static_cast<void>(SendAll(socket.get(), Bytes(header), Later()));
    static_cast<void>(SendAll(socket.get(), Bytes(TcpCopy{0, 16}), Later()));
    EXPECT_TRUE(HungUp(socket.get()));
  }
  ExpectServes();
}

TEST_F(TcpOwnerFaults, MessagesByteByByteAreUnderstood) {
  const UniqueFd socket = DialAndGreet();
  const TcpWriteHeader header{.id = 5, .epoch = 1, .payload_bytes = 3, .copies = 2};
  const std::array<TcpCopy, 2> copies{TcpCopy{100, 1}, TcpCopy{200, 2}};
  std::vector<std::byte> message;
  for (const auto part : {Bytes(header), Bytes(copies)})
    message.insert(message.end(), part.begin(), part.end());
  for (int i = 1; i <= 3; ++i) message.push_back(std::byte(i));
  for (const std::byte& byte : message)
    ASSERT_TRUE(SendAll(socket.get(), {&byte, 1}, Later()).has_value());
  TcpAck ack;
  ASSERT_TRUE(ReceiveAll(socket.get(), Room(ack), Later()).has_value());
  EXPECT_EQ(ack.id, 5u);
  EXPECT_EQ(ack.code, 0u);
  EXPECT_EQ(owner_.pool()[100], std::byte{1});
  EXPECT_EQ(owner_.pool()[201], std::byte{3});
}

TEST_F(TcpOwnerFaults, AMessageCutAnywhereIsNoWriteAndHarmsNobody) {
  const std::vector<std::byte> payload(512, std::byte{7});
  const TcpWriteHeader header{.flags = kTcpChecksummed,
                              .id = 1,
                              .epoch = 1,
                              .payload_bytes = payload.size(),
                              .checksum = FoldChecksum(0, payload),
                              .copies = 1};
  const TcpCopy copy{4096, payload.size()};
  std::vector<std::byte> message;
  for (const std::span<const std::byte> part :
       {Bytes(header), Bytes(copy), std::span<const std::byte>(payload)})
    message.insert(message.end(), part.begin(), part.end());
  for (size_t cut = 0; cut < message.size(); cut += 7) {
    const UniqueFd socket = DialAndGreet();
    ASSERT_TRUE(SendAll(socket.get(), std::span(message).first(cut), Later()).has_value());
    ASSERT_EQ(shutdown(socket.get(), SHUT_WR), 0);
    EXPECT_TRUE(HungUp(socket.get())) << "acknowledged after " << cut << " bytes";
  }
  EXPECT_EQ(owner_.pool()[4096 + payload.size() - 1], std::byte{0});
  ExpectServes();
}

// Replayed, late or reordered messages land in what is granted now, or nowhere.
TEST_F(TcpOwnerFaults, WritesThatAreReplayedOrReorderedKeepToWhatIsGrantedNow) {
  const auto message = [](uint64_t id, uint64_t epoch, uint64_t offset, std::byte value) {
    const std::vector<std::byte> payload(512, value);
    const TcpWriteHeader header{.flags = kTcpChecksummed,
                                .id = id,
                                .epoch = epoch,
                                .payload_bytes = payload.size(),
                                .checksum = FoldChecksum(0, payload),
                                .copies = 1};
    const TcpCopy copy{offset, payload.size()};
    std::vector<std::byte> bytes;
    for (const std::span<const std::byte> part :
         {Bytes(header), Bytes(copy), std::span<const std::byte>(payload)})
      bytes.insert(bytes.end(), part.begin(), part.end());
    return bytes;
  };
  const UniqueFd socket = DialAndGreet(), other = DialAndGreet();
  const auto say = [](const UniqueFd& to, const std::vector<std::byte>& bytes, uint64_t id) {
    EXPECT_TRUE(SendAll(to.get(), bytes, Later()).has_value());
    TcpAck ack;
    EXPECT_TRUE(ReceiveAll(to.get(), Room(ack), Later()).has_value());
    EXPECT_EQ(ack.id, id) << "acknowledged by its own id, in the order of the connection";
    return ack.code == 0;
  };
  const BlockCopy mine{0, 8192, 512};
  owner_.transport().RevokeEpoch(Epoch(1));
  owner_.transport().AllowEpoch(Epoch(2), {&mine, 1});
  const auto first = message(7, 2, 8192, std::byte{1});
  const auto elsewhere = message(6, 2, 0, std::byte{2});
  const auto early = message(9, 3, 8192, std::byte{3});
  EXPECT_TRUE(say(socket, first, 7));
  EXPECT_FALSE(say(socket, early, 9)) << "its epoch is not granted yet";
  EXPECT_FALSE(say(socket, elsewhere, 6));
  EXPECT_TRUE(say(socket, first, 7)) << "the same bytes in the same place";
  EXPECT_TRUE(say(other, first, 7)) << "also over another connection";
  EXPECT_EQ(owner_.pool()[8192], std::byte{1});
  owner_.transport().RevokeEpoch(Epoch(2));
  owner_.transport().AllowEpoch(Epoch(3), {&mine, 1});
  EXPECT_TRUE(say(socket, early, 9));
  EXPECT_FALSE(say(socket, first, 7)) << "of an epoch that is over";
  EXPECT_FALSE(say(other, first, 7));
  EXPECT_EQ(owner_.pool()[8192], std::byte{3});
  EXPECT_EQ(owner_.pool()[0], std::byte{0});
  owner_.transport().AllowEpoch(Epoch(1), {&mine, 1});
}

TEST_F(TcpOwnerFaults, DamagedPayloadIsReported) {
  const UniqueFd socket = DialAndGreet();
  const std::array<std::byte, 4> payload{std::byte{1}, std::byte{2}, std::byte{3}, std::byte{4}};
  const TcpWriteHeader header{.flags = kTcpChecksummed,
                              .id = 5,
                              .epoch = 1,
                              .payload_bytes = 4,
                              .checksum = FoldChecksum(0, payload) + 1,
                              .copies = 1};
  ASSERT_TRUE(SendAll(socket.get(), Bytes(header), Later()).has_value());
  ASSERT_TRUE(SendAll(socket.get(), Bytes(TcpCopy{0, 4}), Later()).has_value());
  ASSERT_TRUE(SendAll(socket.get(), payload, Later()).has_value());
  TcpAck ack;
  ASSERT_TRUE(ReceiveAll(socket.get(), Room(ack), Later()).has_value());
  EXPECT_EQ(static_cast<Code>(ack.code), Code::kDataLoss);
}

TEST_F(TcpOwnerFaults, MoreWritersThanTheLimitAreTurnedAway) {
  std::vector<UniqueFd> sockets;
  for (int i = 0; i < 8; ++i) sockets.push_back(DialAndGreet());
  const UniqueFd ninth = Dial();
  EXPECT_TRUE(HungUp(ninth.get()));
  sockets.clear();
  // Slots become free as the owner notices.
  bool served = false;
  while (!served) {
    Side writer(Lane::kTcp, nullptr);
    served = writer.transport().Connect(*owner_.transport().Descriptor(), kPatience).has_value();
  }
}

// A writer against faulty owners.
class TcpWriterFaults : public testing::Test {
 protected:
  TcpWriterFaults() : writer_(Lane::kTcp, nullptr, {.stall_timeout = kStall}) {
    listen_ = std::move(*ListenTcp("127.0.0.1", 0));
    descriptor_ =
        "tcp1 127.0.0.1 " + std::to_string(*LocalPort(listen_.get())) + " " + NewCookie().ToHex();
  }
  UniqueFd Accept() {
    pollfd state{listen_.get(), POLLIN, 0};
    EXPECT_EQ(poll(&state, 1, static_cast<int>(ToMs(kPatience))), 1);
    return UniqueFd(accept4(listen_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  }
  // Connects the writer; `serve` plays the owner meanwhile.
  Result<KvPeerId> Connect(const std::function<void(int socket)>& serve) {
    Thread owner("fake-owner", [&] {
      accepted_ = Accept();
      TcpHello hello;
      if (ReceiveAll(accepted_.get(), Room(hello), Later())) serve(accepted_.get());
    });
    Result<KvPeerId> peer = writer_.transport().Connect(descriptor_, kPatience);
    owner.Join();
    return peer;
  }
  static void Welcome(int socket) {
    static_cast<void>(SendAll(socket, Bytes(TcpHelloReply{.pool_bytes = 1 << 20}), Later()));
  }
  Result<WriteId> Write(KvPeerId peer, uint64_t bytes) {
    const BlockCopy copy{0, 0, bytes};
    return writer_.transport().Write(peer, {&copy, 1}, Epoch(1));
  }

  Side writer_;
  UniqueFd listen_;
  UniqueFd accepted_;
  std::string descriptor_;
};

TEST_F(TcpWriterFaults, OwnerThatNeverGreetsIsATimeout) {
  const Result<KvPeerId> peer =
      writer_.transport().Connect(descriptor_, kStall);  // in the backlog, never accepted
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, Code::kDeadlineExceeded);
}

TEST_F(TcpWriterFaults, AnotherProtocolIsRefused) {
  const Result<KvPeerId> peer = Connect([](int socket) {
    const std::string text = "HTTP/1.1 400 Bad Request\r\n\r\n";
    static_cast<void>(SendAll(socket, std::as_bytes(std::span(text)), Later()));
  });
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, Code::kFailedPrecondition);
}

TEST_F(TcpWriterFaults, OwnerThatTakesNothingFailsAllWrites) {
  const Result<KvPeerId> peer = Connect(&Welcome);
  ASSERT_TRUE(peer.has_value());
  for (int i = 0; i < 40; ++i)
    ASSERT_TRUE(Write(*peer, 1 << 20).has_value());  // more than the socket buffers hold
  for (const WriteCompletion& done : writer_.Await(40)) {
    ASSERT_FALSE(done.status.has_value());
    EXPECT_EQ(done.status.error().code, Code::kUnavailable);
    EXPECT_THAT(done.status.error().message, HasSubstr("took and acknowledged nothing"));
  }
  EXPECT_EQ(Write(*peer, 8).error().code, Code::kUnavailable);
}

TEST_F(TcpWriterFaults, OwnerThatTakesNothingLeavesRoomForWritesToOthers) {
  Side honest(Lane::kTcp, nullptr);
  const Result<KvPeerId> other =
      writer_.transport().Connect(*honest.transport().Descriptor(), kPatience);
  ASSERT_TRUE(other.has_value());
  const BlockCopy all{0, 0, honest.pool().size()};
  honest.transport().AllowEpoch(Epoch(1), {&all, 1});
  const Result<KvPeerId> stalled = Connect(&Welcome);
  ASSERT_TRUE(stalled.has_value());
  size_t accepted = 0;
  Result<WriteId> last = Write(*stalled, 4096);
  for (; last && accepted < 100'000; ++accepted) last = Write(*stalled, 4096);
  ASSERT_FALSE(last.has_value());
  EXPECT_EQ(last.error().code, Code::kResourceExhausted);
  EXPECT_GT(accepted, 1000u);
  ASSERT_TRUE(Write(*other, 4096).has_value()) << "one that is stopped takes no place of others";
  const std::vector<WriteCompletion> done = writer_.Await(1);
  EXPECT_TRUE(done.at(0).status.has_value());
}

TEST_F(TcpWriterFaults, OwnerThatNeverAcknowledgesFailsTheWrite) {
  const Result<KvPeerId> peer = Connect(&Welcome);
  ASSERT_TRUE(peer.has_value());
  ASSERT_TRUE(Write(*peer, 8).has_value());
  EXPECT_EQ(writer_.Await(1).at(0).status.error().code, Code::kUnavailable);
}

TEST_F(TcpWriterFaults, WrongAcknowledgementsEndTheConnection) {
  const Result<KvPeerId> peer = Connect(&Welcome);
  ASSERT_TRUE(peer.has_value());
  ASSERT_TRUE(SendAll(accepted_.get(), Bytes(TcpAck{.id = 12345}), Later()).has_value());
  while (Write(*peer, 8).has_value()) EXPECT_FALSE(writer_.Await(1).at(0).status.has_value());
  EXPECT_EQ(Write(*peer, 8).error().code, Code::kUnavailable);
}

TEST_F(TcpWriterFaults, ALargeWriteGoesInPartsAndFailsWithOneOfThem) {
  for (const bool damaged : {false, true}) {
    const Result<KvPeerId> peer = Connect(&Welcome);
    ASSERT_TRUE(peer.has_value());
    constexpr uint64_t kBytes = kTcpPartBytes + 4096;
    const Result<WriteId> large = Write(*peer, kBytes);
    ASSERT_TRUE(large.has_value());
    ASSERT_TRUE(Write(*peer, 8).has_value());
    uint64_t of_large = 0;
    int messages = 0;
    for (bool last = false; !last; ++messages) {
      TcpWriteHeader header;
      ASSERT_TRUE(ReceiveAll(accepted_.get(), Room(header), Later()));
      ASSERT_EQ(header.copies, 1u);
      ASSERT_LE(header.payload_bytes, kTcpPartBytes);
      TcpCopy copy;
      ASSERT_TRUE(ReceiveAll(accepted_.get(), Room(copy), Later()));
      std::vector<std::byte> payload(header.payload_bytes);
      ASSERT_TRUE(ReceiveAll(accepted_.get(), payload, Later()));
      EXPECT_EQ(header.checksum, FoldChecksum(0, payload));
      last = header.id != large->value;
      if (!last) {
        EXPECT_EQ(copy.offset, of_large) << "one behind the other";
        of_large += copy.bytes;
        EXPECT_EQ(header.more, kBytes - of_large) << "what its owner may wait for";
      }
      const bool bad = damaged && messages == 0;
      const TcpAck ack{.code = bad ? static_cast<uint32_t>(Code::kDataLoss) : 0, .id = header.id};
      ASSERT_TRUE(SendAll(accepted_.get(), Bytes(ack), Later()));
    }
    if (!damaged) {
      EXPECT_EQ(of_large, kBytes);
      EXPECT_EQ(messages, 3);
    }
    const auto done = writer_.Await(2);
    EXPECT_EQ(done.at(0).id, *large);
    EXPECT_EQ(done.at(0).status.has_value(), !damaged);
    if (damaged) {
      EXPECT_EQ(done.at(0).status.error().code, Code::kDataLoss);
    }
    EXPECT_TRUE(done.at(1).status.has_value());
    writer_.transport().Disconnect(*peer);
  }
}

TEST_F(TcpWriterFaults, NobodyListening) {
  listen_.Reset();
  const Result<KvPeerId> peer = writer_.transport().Connect(descriptor_, kPatience);
  ASSERT_FALSE(peer.has_value());
  EXPECT_EQ(peer.error().code, Code::kUnavailable);
}

TEST(TcpAddresses, Ipv6Works) {
  TcpTransport::Options options;
  options.bind_address = "::1";
  SharedPool pool = std::move(*SharedPool::Create(1 << 16));
  TcpTransport owner(options);
  ASSERT_TRUE(owner.Register(pool.region()).has_value());
  const Result<std::string> descriptor = owner.Descriptor();
  if (!descriptor) GTEST_SKIP() << "no IPv6 here: " << descriptor.error().ToString();
  Side writer(Lane::kTcp, nullptr);
  EXPECT_TRUE(writer.transport().Connect(*descriptor, kPatience).has_value());
}

TEST(TcpAddresses, WildcardNeedsAnAddressToAdvertise) {
  TcpTransport::Options options;
  options.bind_address = "0.0.0.0";
  SharedPool pool = std::move(*SharedPool::Create(1 << 16));
  TcpTransport owner(options);
  ASSERT_TRUE(owner.Register(pool.region()).has_value());
  const Result<std::string> descriptor = owner.Descriptor();
  ASSERT_FALSE(descriptor.has_value());
  EXPECT_THAT(descriptor.error().message, HasSubstr("advertise"));
}

TEST(TcpAddresses, NamesAreRefused) {
  EXPECT_FALSE(ListenTcp("localhost", 0).has_value());
  EXPECT_FALSE(ConnectTcp("localhost", 1, kPatience).has_value());
}

}  // namespace
}  // namespace aisp
