// How long the owner of a tcp transport sleeps while a write goes on: what its writer announces
// says so, and nothing else.
#include <gtest/gtest.h>
#include <poll.h>

#include <span>
#include <vector>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_socket.h"
#include "kvcache/transport/tcp_wire.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {
namespace {

constexpr uint32_t kPart = 4096;

Instant Later() { return SteadyClock().Now() + kPatience; }

template <typename T>
std::span<std::byte> Room(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

// An owner, and a writer that says what a test wants.
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
  }
  // A part of write `id` with `more` bytes of it to come, damaged or not.
  void Part(uint64_t id, uint32_t more, bool damaged = false) {
    std::vector<std::byte> payload(kPart, std::byte{7});
    TcpWriteHeader header{.flags = kTcpChecksummed,
                          .id = id,
                          .epoch = 1,
                          .payload_bytes = kPart,
                          .checksum = FoldChecksum(0, payload) + (damaged ? 1 : 0),
                          .copies = 1,
                          .more = more};
    TcpCopy copy{0, kPart};
    std::vector<std::byte> message;
    for (const std::span<std::byte> part : {Room(header), Room(copy), std::span(payload)})
      message.insert(message.end(), part.begin(), part.end());
    Say(message);
  }
  Code Answer(uint64_t id) {
    TcpAck ack;
    EXPECT_TRUE(ReceiveAll(socket_.get(), Room(ack), Later()).has_value());
    EXPECT_EQ(ack.id, id);
    return static_cast<Code>(ack.code);
  }
  // Nothing comes for a while.
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
  void Say(std::span<const std::byte> bytes) {
    EXPECT_TRUE(SendAll(socket_.get(), bytes, Later()).has_value());
  }
  Side owner_;
  UniqueFd socket_;
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
  // Its writer stops when it hears of that, behind a part that was under way and is good.
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

}  // namespace
}  // namespace aisp
