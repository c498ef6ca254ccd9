// The parts of the time to the first token.
#include "decode/ttft.h"

#include <gtest/gtest.h>

namespace aisp {
namespace {

constexpr int64_t kUs = 1000;
constexpr Duration Us(int64_t us) { return Duration(us * kUs); }
constexpr Instant At(int64_t us) { return Instant{us * kUs}; }

struct Parts {
  int64_t queue, prefill, transfer, first_decode;
  bool operator==(const Parts&) const = default;
};

// A prompt that came at 0, was sent away at 100 us and was queued for 50 and computed for 1,000 us
// there.
Parts RemoteParts(Instant first_token, Instant filled, bool drawn, Duration tail) {
  SequenceTimes times;
  times.first_token = first_token;
  RemotePrefill remote;
  remote.asked = At(100);
  remote.filled = filled;
  remote.queue = Us(50);
  remote.prefill = Us(1000);
  remote.tail = tail;
  remote.drawn = drawn;
  const v1::Timing timing = RemoteTiming(At(0), times, remote);
  return {timing.queue_ns() / kUs, timing.prefill_ns() / kUs, timing.transfer_ns() / kUs,
          timing.first_decode_ns() / kUs};
}

// Both messages took 400 us together. KV arrived before computing ended: of the transfer only the
// message that says so is exposed.
TEST(Ttft, HalfOfTheMessagesIsQueueing) {
  EXPECT_EQ(RemoteParts(At(1550), At(1550), true, Us(0)), (Parts{350, 1000, 200, 0}));
  EXPECT_EQ(RemoteParts(At(3550), At(1550), false, Us(0)), (Parts{350, 1000, 200, 2000}));
}

TEST(Ttft, KvThatComesBehindComputingIsTransfer) {
  EXPECT_EQ(RemoteParts(At(1550), At(1550), true, Us(300)), (Parts{200, 1000, 350, 0}));
}

// A worker that reports more than there was.
TEST(Ttft, PartsNeverPassTheWhole) {
  EXPECT_EQ(RemoteParts(At(1120), At(1120), true, Us(5000)), (Parts{150, 970, 0, 0}));
}

}  // namespace
}  // namespace aisp
