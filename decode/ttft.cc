#include "decode/ttft.h"

#include <algorithm>

namespace aisp {
namespace {

// Takes up to `wanted` from what is left of the whole.
int64_t Take(int64_t wanted, int64_t* left) {
  const int64_t taken = std::clamp<int64_t>(wanted, 0, *left);
  *left -= taken;
  return taken;
}

int64_t Since(Instant from, Instant to) {
  return from == kNever || to == kNever ? 0 : (to - from).count();
}

int64_t Whole(Instant received, const SequenceTimes& times) {
  return std::max<int64_t>(0, Since(received, times.first_token));
}

}  // namespace

v1::Timing LocalTiming(Instant received, const SequenceTimes& times) {
  v1::Timing timing;
  int64_t left = Whole(received, times);
  timing.set_queue_ns(Take(Since(received, times.first_scheduled), &left));
  timing.set_prefill_ns(Take(Since(times.first_scheduled, times.prefill_done), &left));
  timing.set_first_decode_ns(left);
  timing.set_cached_tokens(static_cast<uint32_t>(std::max(0, times.cached_tokens)));
  timing.set_preemptions(static_cast<uint32_t>(times.preemptions));
  return timing;
}

v1::Timing RemoteTiming(Instant received, const SequenceTimes& times, const RemotePrefill& remote) {
  v1::Timing timing;
  int64_t left = Whole(received, times);
  int64_t before_filled = Take(Since(received, remote.filled), &left);
  timing.set_queue_ns(Take(Since(received, remote.asked) + remote.queue.count(), &before_filled));
  timing.set_prefill_ns(Take(remote.prefill.count(), &before_filled));
  timing.set_transfer_ns(before_filled);
  timing.set_first_decode_ns(left);
  timing.set_cached_tokens(remote.cached_tokens);
  timing.set_kv_blocks_moved(remote.blocks);
  timing.set_kv_transport(remote.transport);
  timing.set_preemptions(static_cast<uint32_t>(times.preemptions));
  return timing;
}

}  // namespace aisp
