// DecodeRequest: a request that a decode worker owns. Plain data of the decode role.
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
  kRunning,    // in the engine: prefilled here, or its KV has arrived
  kPulling,    // waits for its prefix from another worker's cache
  kDialling,   // waits for the session to its prefill worker
  kRequested,  // PrefillRequest was sent
  kGranted,    // the prefill worker writes, or (granted_early) will or gives the grant back
};

// A router's request: its link and the id on that link.
using RouterRequestId = std::pair<LinkId, uint64_t>;

struct DecodeRequest {
  RequestKey key;
  // Receivers of its tokens: its router, and routers that asked again under its AnswerKey.
  std::vector<RouterRequestId> readers;
  std::optional<Hash128> kept;  // digest under which its answer is kept
  std::string trace_id;
  SequenceId sequence;
  RequestPhase phase = RequestPhase::kRunning;
  Instant received;
  Instant deadline = kNever;
  bool first_token_sent = false;

  uint64_t pull = 0;   // kPulling
  PullOutcome pulled;  // set when the pull has ended

  // The remote prefill. One attempt per target, in order.
  std::vector<std::string> targets;  // addresses
  size_t next_target = 0;
  v1::PrefillRequest prefill;         // the request without tokens and transfer id
  std::optional<v1::FirstDraw> draw;  // of the first token; absent: drawn here only
  bool draw_asked = false;            // in the current attempt
  int32_t features_asked = 0;         // positions whose features the current attempt requests
  SharedTokens prompt;                // tokens shared with other requests, else all
  std::vector<TokenId> rest;          // tokens after `prompt`
  bool shares_prompt = false;
  uint64_t prompt_id = 0;  // in the current attempt, if the prompt is shared
  std::string address;     // in the current attempt
  // Processes asked so far, and those lost since, before the first token.
  std::vector<v1::PrefillTarget> asked;
  std::vector<v1::PrefillTarget> lost;
  Instant began;               // of the current attempt
  uint64_t transfer_id = 0;    // of the current attempt, 0 before it was sent
  Instant silent_at = kNever;  // kRequested: when the prefill worker counts as silent
  bool granted_early = false;  // kGranted: with the request, before blocks were asked for
  Epoch epoch;                 // kGranted
  int32_t first_token = 0;     // kGranted
  Instant lease_end = kNever;  // kGranted
  RemotePrefill remote;
  bool filled = false;
  std::vector<FailedAttempt> failed;  // at most one per target
  // Why the KV did not come from the prefill worker that the router chose; "": it did, or none was
  // chosen.
  std::string fallback;

  // A prefill worker delivers KV up to here.
  int32_t kv_end() const { return tokens() - (draw_asked ? 0 : 1); }
  int32_t tokens() const { return static_cast<int32_t>(prompt.size() + rest.size()); }
};

}  // namespace aisp
