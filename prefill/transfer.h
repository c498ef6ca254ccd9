// Transfer: one prompt that a prefill worker computes for a reader. Plain data of the prefill role.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/clock.h"
#include "common/ids.h"
#include "engine/request.h"
#include "prefill/kv_pusher.h"
#include "prefill/readers.h"

namespace aisp {

using TransferKey =
    StrongId<struct TransferTag, uint64_t>;  // counts up: a smaller one came earlier

enum class TransferPhase : uint8_t {
  kQueued,   // gated; not asked for blocks
  kAsked,    // NeedBlocks is out
  kRefused,  // asked again at retry_at
  kGranted,  // computing and pushing
  kFencing,  // over; FenceAck follows the last completion
};

struct Transfer {
  TransferKey key;
  ReaderId reader;
  uint64_t transfer_id = 0;  // the reader's name for it
  std::string trace_id;      // the client's request
  TransferPhase phase = TransferPhase::kQueued;
  SequenceId sequence;
  bool sequence_alive = true;
  int32_t tokens = 0;     // of the prompt
  int32_t end_token = 0;  // KV is wanted up to here: `tokens` where one is drawn, else one less
  std::optional<TokenOutput> drawn;  // behind them
  Instant received;
  Instant deadline = kNever;

  Instant retry_at = kNever;  // kRefused
  int refusals = 0;
  int overtaken = 0;  // by later transfers of the same reader, since the first refusal

  uint64_t fetch = 0;      // of its beginning from another worker's cache, while under way
  v1::PrefixPull fetched;  // what became of it
  Instant fetch_over = kNever;

  Epoch epoch;  // kGranted, kFencing
  int32_t first_token = 0;
  Instant granted;
  Instant lease_end = kNever;
  PushId push;
  bool computed = false;
  Instant computed_at = kNever;
  Instant first_scheduled = kNever;
  int32_t cached_tokens = 0;

  bool gated() const {
    return phase == TransferPhase::kQueued || phase == TransferPhase::kAsked ||
           phase == TransferPhase::kRefused;
  }
};

}  // namespace aisp
