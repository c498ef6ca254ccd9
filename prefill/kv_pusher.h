// KvPusher: the writes of granted transfers. Turns "layer l of a sequence is ready up to token t"
// into writes to the decode worker's pool, keeps the source blocks pinned until a write has
// completed, and knows when a push is over.
//
// Invariants: each (layer, block) of a push is written exactly once; a source block of a write that
// has not completed is pinned (a sequence that is preempted or cancelled meanwhile cannot give it
// to another); after Stop, and after the lease has expired on this clock, no write starts. A full
// transport queue keeps writes waiting here, at most the grant itself.
//
// A reader whose blocks hold other numbers of tokens gets the rows of ours one by one. KV in other
// numbers is converted into staging memory when it is about to be written (conversion_staging.h);
// while that is full, writes wait as for a full queue, those that came first before the others.
//
// Owned by the engine thread. Ready() may be called from inside a step (LayerSink): it only touches
// the transport and pins.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "kvcache/block_manager.h"
#include "kvcache/kv_conversion.h"
#include "kvcache/transport/kv_transport.h"
#include "prefill/conversion_staging.h"

namespace aisp {

using PushId = StrongId<struct PushTag, uint64_t>;

// What is pushed where.
struct PushTarget {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  KvLayout layout;  // of the reader's pool
  Epoch epoch;
  int32_t first_token = 0;      // multiple of the reader's block_tokens
  int32_t end_token = 0;        // exclusive; may lie inside a block
  std::vector<BlockId> blocks;  // the reader's, from first_token on
  Instant lease_end = kNever;   // no write starts later
};

// What is measured of one lane; handles that were never made ignore it.
struct LaneMetrics {
  Counter bytes;         // of writes that completed
  Counter busy_seconds;  // with a write under way
  Counter failed;
  Histogram write_seconds;
};

// Of KV that is converted.
struct ConversionMetrics {
  Counter bytes;  // made for readers
  Counter seconds;
};

struct PushTotals {
  uint64_t token_layers = 0;  // completed
  uint64_t bytes = 0;         // completed
  uint32_t blocks = 0;        // the reader's
  Instant first_start = kNever;
  Instant last_completion = kNever;
};

class KvPusher {
 public:
  // `pool`: as ConversionStaging's.
  KvPusher(BlockManager* blocks, const Clock* clock, std::byte* pool = nullptr);

  void SetMetrics(const KvTransport* lane, const LaneMetrics& metrics) {
    lanes_[lane].metrics = metrics;
  }

  void SetMetrics(const ConversionMetrics& metrics) { conversions_ = metrics; }
  // For readers whose KV is converted: open while pushes to them are.
  ConversionStaging& staging() { return staging_; }
  const ConversionStaging& staging() const { return staging_; }

  // KvConversion::Plan must find a way from this pool to the target's layout.
  PushId Open(PushTarget target);
  // KV of tokens [0, ready_tokens) of `layer` lies in `local` (the sequence's block table): writes
  // what became whole.
  void Ready(PushId id, int32_t layer, int32_t ready_tokens, std::span<const BlockId> local);
  // The same of all layers at once: they share writes where nothing is converted, since each costs
  // a transport some time of its own.
  void ReadyAllLayers(PushId id, int32_t ready_tokens, std::span<const BlockId> local);
  // No write starts any more; what the transport still queues is cancelled.
  void Stop(PushId id);
  // Forgets a push that is Idle.
  void Close(PushId id);

  // Nothing is being written and nothing waits to be.
  bool Idle(PushId id) const;
  // Everything in [first_token, end_token) of all layers was written and completed.
  bool Complete(PushId id) const;
  // The first error, if any: of a write, or DEADLINE_EXCEEDED when the lease ran out with writes
  // left to start.
  const Status& Failure(PushId id) const;
  const PushTotals& Totals(PushId id) const;

  // Takes completions of `transports` and starts what waits. Returns the pushes whose Idle or
  // Failure may have changed since the last call, those changed inside Ready included.
  std::vector<PushId> Progress(std::span<KvTransport* const> transports);
  // When Progress should be called although no transport woke us: a full queue is tried again, a
  // lease ends.
  Instant NextTimer() const;
  // A smoothed rate of single writes, 0 before the first.
  double BytesPerSecond() const { return bytes_per_s_; }

 private:
  struct PendingWrite {
    std::vector<BlockCopy> copies;  // empty: it is still to be converted
    std::vector<BlockId> sources;   // pinned
    uint64_t bytes = 0;
    int32_t layer = 0;
    int32_t layers = 1;  // from that one on
    int32_t begin = 0;   // tokens [begin, end)
    int32_t end = 0;
    std::vector<uint64_t> slots;  // of the staging memory
  };
  struct Push {
    PushTarget target;
    KvConversion conversion;
    std::vector<int32_t> next_token;  // per layer: what is not handed to a write yet
    std::deque<PendingWrite> pending;
    int32_t outstanding = 0;
    bool staged = false;  // it counts in staging_
    bool stopped = false;
    Status failure;
    PushTotals totals;
  };
  struct Outstanding {
    PushId push;
    PendingWrite write;
    Instant started;
  };

  struct Lane {
    LaneMetrics metrics;
    Instant accounted;  // until when its busy time is counted
  };

  void Measure(const KvTransport* transport, const Outstanding& done, bool ok, Instant now);
  Push& Get(PushId id);
  const Push& Get(PushId id) const;
  // Makes writes of what is ready of a layer and was handed to none yet.
  void Append(Push& push, int32_t layer, int32_t ready_tokens, std::span<const BlockId> local);
  // The last two as one, where they are of neighbouring layers and not too long.
  void JoinLast(Push& push);
  PendingWrite MakeWrite(const Push& push, int32_t layer, int32_t begin, int32_t end,
                         std::span<const BlockId> local);
  // False while the staging memory has no room.
  bool Convert(PushId id, const Push& push, PendingWrite& write);
  void StartPending(PushId id, Push& push);
  void Abort(PushId id, Push& push, Error why);
  void DropPending(PushId id, Push& push);
  // What it held until it was over.
  void LetGo(const PendingWrite& write);
  void OnCompletion(KvTransport* transport, const WriteCompletion& completion);

  BlockManager* const blocks_;
  const Clock* const clock_;
  uint64_t last_id_ = 0;
  std::map<PushId, Push> pushes_;  // ordered: the order of retries is the order of grants
  std::unordered_map<KvTransport*, std::unordered_map<WriteId, Outstanding>> outstanding_;
  std::unordered_map<const KvTransport*, Lane> lanes_;
  ConversionStaging staging_;
  ConversionMetrics conversions_;
  std::optional<PushId> next_staged_;  // the first that waits for staging memory
  std::vector<std::byte> made_;        // one layer of a block
  std::vector<PushId> changed_;
  Instant retry_at_ = kNever;
  double bytes_per_s_ = 0;
};

}  // namespace aisp
