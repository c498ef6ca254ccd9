// Transfer: a prompt that a prefill worker computes for a reader. Plain data of the prefill role.
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

using TransferKey = StrongId<struct TransferTag, uint64_t>;  // increases with arrival

enum class TransferPhase : uint8_t {
  kQueued,   // gated; blocks not requested
  kAsked,    // NeedBlocks was sent
  kRefused,  // asked again at retry_at
  kGranted,  // computing and pushing
  kFencing,  // ended; FenceAck follows the last completion
};

struct Transfer {
  TransferKey key;
  ReaderId reader;
  uint64_t transfer_id = 0;  // the reader's id of it
  std::string trace_id;      // of the client's request
  TransferPhase phase = TransferPhase::kQueued;
  SequenceId sequence;
  bool sequence_alive = true;
  int32_t tokens = 0;     // of the prompt
  int32_t end_token = 0;  // KV is wanted up to here: `tokens` if a token is drawn, else one less
  std::optional<TokenOutput> drawn;  // the first token
  Instant received;
  Instant deadline = kNever;

  Instant retry_at = kNever;  // kRefused
  int refusals = 0;
  int overtaken = 0;  // by later transfers of its reader, since the first refusal

  uint64_t fetch = 0;      // of its prefix from another worker's cache, while in progress
  v1::PrefixPull fetched;  // its outcome
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
