// Parts of a write over tcp: how long the owner sleeps between them (the announced size decides,
// and nothing else), and checksums that follow their payload.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <array>
#include <functional>
#include <span>
#include <vector>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"
#include "tests/kvcache/transport/tcp_fake_owner.h"

namespace aisp {
namespace {

constexpr uint32_t kPart = 4096;

// An owner, and a writer whose messages the test composes.
class Spoken {
 public:
  explicit Spoken(Duration stall) : owner_(Lane::kTcp, nullptr, {.stall_timeout = stall}) {
    const std::string descriptor = *owner_.transport().Descriptor();
    const auto parts = Split(descriptor, ' ');
    const BlockCopy all{0, 0, owner_.pool().size()};
    owner_.transport().AllowEpoch(Epoch(1), {&all, 1});
    socket_ =
        std::move(*ConnectTcp("127.0.0.1", static_cast<uint16_t>(*ParseInt(parts[2])), kPatience));
    TcpHello hello{.cookie = *ParseCookie(parts[3])};
    Say(Room(hello));
    TcpHelloReply reply;
    EXPECT_TRUE(ReceiveAll(socket_.get(), Room(reply), Later()).has_value());
    takes_ = reply.takes;
  }
  // A part of write `id` with `more` bytes to follow, damaged or not.
  void Part(uint64_t id, uint32_t more, bool damaged = false) {
    std::vector<std::byte> payload(kPart, std::byte{7});
    const uint64_t checksum = FoldChecksum(0, payload) + (damaged ? 1 : 0);
    Say(Message({.flags = kTcpChecksummed, .id = id, .checksum = checksum, .more = more}, payload));
  }
  // The same with its checksum after it; the last `held` bytes are not sent.
  void PartBefore(uint64_t id, std::byte value, uint64_t epoch = 1, bool damaged = false,
                  size_t held = 0) {
    std::vector<std::byte> payload(kPart, value);
    std::vector<std::byte> message =
        Message({.flags = kTcpChecksummed | kTcpChecksumBehind, .id = id, .epoch = epoch}, payload);
    uint64_t checksum = FoldChecksum(0, payload) + (damaged ? 1 : 0);
    const std::span<std::byte> behind = Room(checksum);
    message.insert(message.end(), behind.begin(), behind.end());
    message.resize(message.size() - held);
    Say(message);
  }
  // Writes of a few bytes each or none, from id `first` on, in one piece.
  void Burst(uint64_t first, size_t count) {
    std::vector<std::byte> all;
    for (size_t i = 0; i < count; ++i) {
      std::vector<std::byte> payload(i % 40, static_cast<std::byte>(i));
      uint64_t checksum = FoldChecksum(0, payload);
      const bool behind = i % 2 == 1;
      const uint32_t flags = kTcpChecksummed | (behind ? kTcpChecksumBehind : 0);
      const auto message =
          Message({.flags = flags, .id = first + i, .checksum = behind ? 0 : checksum}, payload);
      all.insert(all.end(), message.begin(), message.end());
      if (behind) all.insert(all.end(), Room(checksum).begin(), Room(checksum).end());
    }
    Say(all);
  }
  void StopSaying() { shutdown(socket_.get(), SHUT_WR); }
  std::byte Landed() const { return owner_.pool()[kPart - 1]; }
  uint32_t takes() const { return takes_; }
  uint32_t mark() const { return WithinMachineMark(socket_.get()); }
  Code Answer(uint64_t id) {
    TcpAck ack;
    EXPECT_TRUE(ReceiveAll(socket_.get(), Room(ack), Later()).has_value());
    EXPECT_EQ(ack.id, id);
    return static_cast<Code>(ack.code);
  }
  // Nothing arrives for a while.
  bool Silent() const {
    pollfd state{socket_.get(), POLLIN, 0};
    return poll(&state, 1, 80) == 0;
  }
  bool HungUp() {
    std::byte byte;
    const Status status = ReceiveAll(socket_.get(), {&byte, 1}, Later());
    return !status && status.error().code == Code::kUnavailable;
  }

 private:
  static std::vector<std::byte> Message(TcpWriteHeader header, std::span<std::byte> payload) {
    if (header.epoch == 0) header.epoch = 1;
    header.payload_bytes = payload.size();
    header.copies = 1;
    TcpCopy copy{0, payload.size()};
    std::vector<std::byte> message;
    for (const std::span<std::byte> part : {Room(header), Room(copy), payload})
      message.insert(message.end(), part.begin(), part.end());
    return message;
  }
  void Say(std::span<const std::byte> bytes) {
    EXPECT_TRUE(SendAll(socket_.get(), bytes, Later()).has_value());
  }
  Side owner_;
  UniqueFd socket_;
  uint32_t takes_ = 0;
};

TEST(TcpOwnerSleeps, UntilHalfOfWhatIsToComeOfAWriteIsThere) {
  Spoken writer(kPatience);
  constexpr uint32_t kParts = 200;
  writer.Part(1, (kParts - 1) * kPart);
  EXPECT_EQ(writer.Answer(1), Code::kOk);
  for (uint32_t i = 1; i < kParts; ++i) {
    if (i == 10) {
      EXPECT_TRUE(writer.Silent()) << "woken by a tenth of what it waits for";
    }
    writer.Part(1, (kParts - 1 - i) * kPart);
  }
  for (uint32_t i = 1; i < kParts; ++i) EXPECT_EQ(writer.Answer(1), Code::kOk);
  writer.Part(2, 0);
  EXPECT_EQ(writer.Answer(2), Code::kOk) << "by the byte again";
}

TEST(TcpOwnerSleeps, NotForTheRestOfAWriteThatItRefused) {
  Spoken writer(2 * kPatience);
  // Its writer stops when it learns of that, after a good part that was in flight.
  writer.Part(1, 1 << 20, true);
  EXPECT_EQ(writer.Answer(1), Code::kDataLoss);
  writer.Part(1, 1 << 20);
  EXPECT_EQ(writer.Answer(1), Code::kOk);
  writer.Part(2, 0);
  EXPECT_EQ(writer.Answer(2), Code::kOk) << "waited for what will not come";
}

TEST(TcpOwnerSleeps, NoLongerThanAStallTimeForWhatWasOnlyAnnounced) {
  Spoken writer(std::chrono::seconds(1));
  writer.Part(1, UINT32_MAX);
  EXPECT_EQ(writer.Answer(1), Code::kOk);
  writer.Part(2, UINT32_MAX);
  EXPECT_EQ(writer.Answer(2), Code::kOk) << "what has come is read before it is given up";
  EXPECT_TRUE(writer.HungUp()) << "in the middle of a write";
}

// What is read ahead wakes nobody: all of it is handled with the bytes before it.
TEST(TcpReadsAhead, ShortWritesThatComeAtOnceAreAllAnswered) {
  Spoken writer(kPatience);
  // As many as are served in a turn, and some more or less.
  uint64_t next = 1;
  for (size_t count = 1; count < 100; ++count, next += count) {
    writer.Burst(next, count);
    for (size_t i = 0; i < count; ++i) ASSERT_EQ(writer.Answer(next + i), Code::kOk) << count;
  }
  EXPECT_TRUE(writer.Silent());
}

TEST(TcpChecksumsBehind, AreCheckedAsThoseInHeaders) {
  Spoken writer(kPatience);
  EXPECT_EQ(writer.takes() & kTcpChecksumBehind, kTcpChecksumBehind);
  writer.PartBefore(1, std::byte{1});
  writer.PartBefore(2, std::byte{2}, 1, /*damaged=*/true);
  writer.PartBefore(3, std::byte{3}, /*epoch=*/9);
  writer.Part(4, 0);
  EXPECT_EQ(writer.Answer(1), Code::kOk);
  EXPECT_EQ(writer.Answer(2), Code::kDataLoss);
  EXPECT_EQ(writer.Answer(3), Code::kFailedPrecondition);
  EXPECT_EQ(writer.Answer(4), Code::kOk) << "what was dropped ends where its checksum does";
  EXPECT_EQ(writer.Landed(), std::byte{7});
}

TEST(TcpChecksumsBehind, AWriteWithoutItsChecksumIsNone) {
  for (size_t held = 1; held <= sizeof(uint64_t); ++held) {
    Spoken writer(kPatience);
    writer.PartBefore(1, std::byte{1}, 1, false, held);
    writer.StopSaying();
    EXPECT_TRUE(writer.HungUp()) << "acknowledged without the last " << held << " bytes";
  }
  Spoken silent(std::chrono::milliseconds(300));
  silent.PartBefore(1, std::byte{1}, 1, false, 1);
  EXPECT_TRUE(silent.HungUp()) << "in the middle of a write";
}

// A writer, and an owner that supports checksums after payloads and answers as the test decides.
class TcpChecksumsSent : public testing::Test {
 protected:
  static constexpr uint64_t kPool = uint64_t{16} << 20;
  struct Received {
    TcpWriteHeader header;
    bool behind = false;
  };

  TcpChecksumsSent() : writer_(Lane::kTcp, nullptr, {.pool_bytes = kPool}) {
    writer_.Fill(5);
    FakeOwner owner = ConnectToFakeOwner(writer_.transport(), "127.0.0.1", [](int) {
      return TcpHelloReply{.takes = kTcpChecksumBehind, .pool_bytes = kPool};
    });
    owner_ = std::move(owner.socket);
    peer_ = owner.peer;
  }
  void Write(uint64_t bytes) {
    const BlockCopy copy{0, 0, bytes};
    ASSERT_TRUE(writer_.transport().Write(peer_, {&copy, 1}, Epoch(1)).has_value());
  }
  // Receives one message and verifies its checksum, wherever it is.
  Received Receive() {
    Received message;
    TcpCopy part;
    EXPECT_TRUE(ReceiveAll(owner_.get(), Room(message.header), Later()).has_value());
    EXPECT_TRUE(ReceiveAll(owner_.get(), Room(part), Later()).has_value());
    std::vector<std::byte> payload(message.header.payload_bytes);
    EXPECT_TRUE(ReceiveAll(owner_.get(), payload, Later()).has_value());
    message.behind = (message.header.flags & kTcpChecksumBehind) != 0;
    uint64_t checksum = message.header.checksum;
    if (message.behind) {
      EXPECT_TRUE(ReceiveAll(owner_.get(), Room(checksum), Later()).has_value());
    }
    EXPECT_EQ(checksum, FoldChecksum(0, payload));
    return message;
  }
  // Waits until the writer waits for buffer space, and so for answers too: no more data arrives.
  void AwaitFullBuffers() {
    int before = 0, held = 0, same = 0;
    while (same < 5) {
      before = held;
      poll(nullptr, 0, 10);
      ASSERT_EQ(ioctl(owner_.get(), FIONREAD, &held), 0);
      same = held > 0 && held == before ? same + 1 : 0;
    }
  }
  void Answer(const Received& message, Code code) {
    TcpAck ack{.code = static_cast<uint32_t>(code), .id = message.header.id};
    EXPECT_TRUE(SendAll(owner_.get(), Room(ack), Later()).has_value());
  }

  Side writer_;
  UniqueFd owner_;
  KvPeerId peer_;
};

TEST_F(TcpChecksumsSent, BehindEveryLongPayload) {
  Write(kTcpPartBytes + kTcpPartBytes / 4);
  const Received first = Receive();
  EXPECT_TRUE(first.behind);
  Answer(first, Code::kOk);
  const Received last = Receive();
  EXPECT_TRUE(last.behind) << "though no message follows that would bring it";
  Answer(last, Code::kOk);
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
}

TEST_F(TcpChecksumsSent, InTheHeaderOfAShortMessage) {
  Write(kPart);
  const Received message = Receive();
  EXPECT_FALSE(message.behind) << "a packet for eight bytes";
  Answer(message, Code::kOk);
  EXPECT_TRUE(writer_.Await(1).at(0).status.has_value());
}

TEST_F(TcpChecksumsSent, ByThemselvesWhereARefusedWriteStops) {
  Write(kPool);  // more than fits the buffers of both sockets
  Received message = Receive();
  AwaitFullBuffers();
  Answer(message, Code::kDataLoss);
  // Messages may still arrive: the write completes only once all sent ones are acknowledged.
  std::array<WriteCompletion, 1> done;
  uint64_t bytes = message.header.payload_bytes;
  while (writer_.transport().Poll(done) == 0) {
    pollfd state{owner_.get(), POLLIN, 0};
    if (poll(&state, 1, 10) == 0) continue;
    message = Receive();
    bytes += message.header.payload_bytes;
    Answer(message, Code::kOk);
  }
  EXPECT_EQ(done[0].status.error().code, Code::kDataLoss);
  EXPECT_LT(bytes, kPool) << "it went on although it was refused";
  EXPECT_TRUE(message.behind) << "which is what this is about";
}

// The flags of a write to an owner at `address` that greets with this mark of its socket.
uint32_t FlagsOfAWrite(const std::string& address, const std::function<uint32_t(int)>& mark) {
  const SharedPool pool = std::move(*SharedPool::Create(1 << 20));
  TcpTransport writer{TcpTransport::Options()};
  EXPECT_TRUE(writer.Register(pool.region()).has_value());
  const FakeOwner owner = ConnectToFakeOwner(writer, address, [&](int socket) {
    return TcpHelloReply{.takes = mark(socket) << kTcpMarkShift, .pool_bytes = 1 << 20};
  });
  const BlockCopy copy{0, 0, kPart};
  EXPECT_TRUE(writer.Write(owner.peer, {&copy, 1}, Epoch(1)).has_value());
  TcpWriteHeader header;
  EXPECT_TRUE(ReceiveAll(owner.socket.get(), Room(header), Later()).has_value());
  return header.flags;
}

TEST(TcpChecksums, AreLeftOutOnlyWhereBothEndsAreCertainlyOnOneMachine) {
  const auto other = [](int socket) { return WithinMachineMark(socket) ^ 1; };
  const Spoken behind_proxy(kPatience);
  ASSERT_NE(behind_proxy.mark(), 0u);
  EXPECT_EQ(behind_proxy.takes() >> kTcpMarkShift, behind_proxy.mark());
  EXPECT_EQ(FlagsOfAWrite("127.0.0.1", WithinMachineMark), 0u);
  EXPECT_EQ(FlagsOfAWrite("127.0.0.1", other), kTcpChecksummed) << "a proxy to another machine";
  EXPECT_EQ(FlagsOfAWrite("127.0.0.1", [&](int) { return behind_proxy.mark(); }), kTcpChecksummed)
      << "a proxy on this machine";
  EXPECT_EQ(FlagsOfAWrite("127.0.0.1", [](int) { return 0; }), kTcpChecksummed) << "an older owner";
  EXPECT_EQ(FlagsOfAWrite("127.0.0.2", WithinMachineMark), kTcpChecksummed)
      << "an address of its own";
}

}  // namespace
}  // namespace aisp
