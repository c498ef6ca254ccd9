// DecodeRequest: one request that a decode worker owns. Plain data of the decode role.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/hash.h"
#include "common/ids.h"
#include "common/shared_tokens.h"
#include "decode/kept_answers.h"
#include "decode/prefix_puller.h"
#include "decode/ttft.h"
#include "proto/link.h"

namespace aisp {

enum class RequestPhase : uint8_t {
  kRunning,    // the engine has all it needs: local, or its KV has arrived
  kPulling,    // waits for the beginning of its prompt from another worker's cache
  kDialling,   // waits for the session to its prefill worker
  kRequested,  // PrefillRequest is out
  kGranted,    // the prefill worker writes
};

// A request of a router, by its link and the id that it has there.
using RouterRequestId = std::pair<LinkId, uint64_t>;

struct DecodeRequest {
  RequestKey key;
  // Who hears what it says: one, and whoever asked again under its AnswerKey.
  std::vector<RouterRequestId> readers;
  std::optional<Hash128> kept;  // under which digest its answer is kept
  std::string trace_id;
  SequenceId sequence;
  RequestPhase phase = RequestPhase::kRunning;
  Instant received;
  Instant deadline = kNever;
  bool first_token_sent = false;

  uint64_t pull = 0;   // kPulling
  PullOutcome pulled;  // once that is over

  // The remote prefill. Attempts: one per target, in order.
  std::vector<std::string> targets;  // addresses
  size_t next_target = 0;
  v1::PrefillRequest prefill;         // what is asked, but for its tokens and the transfer id
  std::optional<v1::FirstDraw> draw;  // of the first token; absent: it is drawn here alone
  bool draw_asked = false;            // of the attempt under way
  int32_t features_asked = 0;         // of so many positions, of the attempt under way
  SharedTokens prompt;        // of the tokens: what it has in common with other requests, else all
  std::vector<TokenId> rest;  // what follows it
  bool shares_prompt = false;
  uint64_t prompt_id = 0;  // of the attempt under way, where the prompt is shared
  std::string address;     // of the attempt under way
  // The processes that were asked so far; and those that were lost since, before the first token.
  std::vector<v1::PrefillTarget> asked;
  std::vector<v1::PrefillTarget> lost;
  Instant began;               // of the attempt under way
  uint64_t transfer_id = 0;    // of the attempt under way, 0 before it was asked
  Instant silent_at = kNever;  // kRequested: the prefill worker counts as silent then
  Epoch epoch;                 // kGranted
  int32_t first_token = 0;     // kGranted
  Instant lease_end = kNever;  // kGranted
  RemotePrefill remote;
  bool filled = false;
  std::vector<FailedAttempt> failed;  // one per target at most
  // Why the KV did not come from the prefill worker that the router chose; "": it did, or none was
  // chosen.
  std::string fallback;

  // A prefill worker brings KV up to here.
  int32_t kv_end() const { return tokens() - (draw_asked ? 0 : 1); }
  int32_t tokens() const { return static_cast<int32_t>(prompt.size() + rest.size()); }
};

}  // namespace aisp
