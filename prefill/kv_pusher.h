// KvPusher: the writes of granted transfers. Turns "layer l of a sequence is ready up to token t"
// into writes to the decode worker's pool, pins the source blocks until a write has completed, and
// tracks when a push has ended.
//
// Invariants: each (layer, block) of a push is written exactly once. The source block of an
// incomplete write is pinned, so a preempted or cancelled sequence cannot pass it to another. After
// Stop, and after the lease has expired on this clock, no write starts. If a transport's queue is
// full, writes wait here, at most those of the grant.
//
// For a reader with another block size, rows are written one by one. KV in another format is
// converted into staging memory just before its write (conversion_staging.h); if that is full,
// writes wait in order, as for a full queue.
//
// Owned by the engine thread. Ready() may be called inside a step (LayerSink): it only uses the
// transport and pins.
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

// Source and destination of a push.
struct PushTarget {
  KvTransport* transport = nullptr;
  KvPeerId peer;
  KvLayout layout;  // of the reader's pool
  Epoch epoch;
  int32_t first_token = 0;      // a multiple of the reader's block_tokens
  int32_t end_token = 0;        // exclusive; may be inside a block
  std::vector<BlockId> blocks;  // the reader's, from first_token on
  Instant lease_end = kNever;   // no write starts later
};

// Metrics of one transport; default-constructed handles ignore updates.
struct LaneMetrics {
  Counter bytes;         // of completed writes
  Counter busy_seconds;  // time with at least one write in progress
  Counter failed;
  Histogram write_seconds;
};

// Metrics of converted KV.
struct ConversionMetrics {
  Counter bytes;  // converted for readers
  Counter seconds;
};

struct PushTotals {
  uint64_t token_layers = 0;  // completed
  uint64_t bytes = 0;         // completed
  uint32_t blocks = 0;        // of the reader
  Instant first_start = kNever;
  Instant last_completion = kNever;
};

class KvPusher {
 public:
  // `pool`: as in ConversionStaging.
  KvPusher(BlockManager* blocks, const Clock* clock, std::byte* pool = nullptr);

  void SetMetrics(const KvTransport* lane, const LaneMetrics& metrics) {
    lanes_[lane].metrics = metrics;
  }

  void SetMetrics(const ConversionMetrics& metrics) { conversions_ = metrics; }
  // Staging memory; open while there are pushes with conversion.
  ConversionStaging& staging() { return staging_; }
  const ConversionStaging& staging() const { return staging_; }

  // KvConversion::Plan must support this pool and the target's layout.
  PushId Open(PushTarget target);
  // KV of tokens [0, ready_tokens) of `layer` is in `local` (the sequence's block table): writes
  // the blocks that became complete.
  void Ready(PushId id, int32_t layer, int32_t ready_tokens, std::span<const BlockId> local);
  // The same for all layers at once. Without conversion, layers share writes, since each write has
  // a cost.
  void ReadyAllLayers(PushId id, int32_t ready_tokens, std::span<const BlockId> local);
  // Starts no more writes, and cancels those that the transport has queued.
  void Stop(PushId id);
  // Removes a push that is Idle.
  void Close(PushId id);

  // No write is in progress or waiting.
  bool Idle(PushId id) const;
  // All layers of [first_token, end_token) were written and completed.
  bool Complete(PushId id) const;
  // The first error: of a write, or DEADLINE_EXCEEDED when the lease expired with writes not
  // started.
  const Status& Failure(PushId id) const;
  const PushTotals& Totals(PushId id) const;

  // Takes completions of `transports` and starts waiting writes. Returns the pushes whose Idle or
  // Failure may have changed since the last call, including inside Ready.
  std::vector<PushId> Progress(std::span<KvTransport* const> transports);
  // A write between GPUs is in progress: it ends within fractions of a millisecond.
  bool ExpectsSoon() const;
  // When to call Progress without a wake-up: to retry a full queue, or at a lease's end.
  Instant NextTimer() const;
  // Smoothed rate of single writes, 0 before the first.
  double BytesPerSecond() const { return bytes_per_s_; }

 private:
  struct PendingWrite {
    std::vector<BlockCopy> copies;  // empty: not converted yet
    std::vector<BlockId> sources;   // pinned
    uint64_t bytes = 0;
    int32_t layer = 0;
    int32_t layers = 1;  // number of layers, from `layer` on
    int32_t begin = 0;   // tokens [begin, end)
    int32_t end = 0;
    std::vector<uint64_t> slots;  // in the staging memory
  };
  struct Push {
    PushTarget target;
    KvConversion conversion;
    std::vector<int32_t> next_token;  // per layer: the first token without a write
    std::deque<PendingWrite> pending;
    int32_t outstanding = 0;
    bool staged = false;  // counted in staging_
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
    Instant accounted;  // busy time is counted up to here
  };

  void Measure(const KvTransport* transport, const Outstanding& done, bool ok, Instant now);
  Push& Get(PushId id);
  const Push& Get(PushId id) const;
  // Appends writes for the newly ready tokens of a layer.
  void Append(Push& push, int32_t layer, int32_t ready_tokens, std::span<const BlockId> local);
  // Merges the last two writes if they are of adjacent layers and short enough.
  void JoinLast(Push& push);
  PendingWrite MakeWrite(const Push& push, int32_t layer, int32_t begin, int32_t end,
                         std::span<const BlockId> local);
  // False when the staging memory is full.
  bool Convert(PushId id, const Push& push, PendingWrite& write);
  // All but the newest `keep` of them.
  void StartPending(PushId id, Push& push, size_t keep = 0);
  void Abort(PushId id, Push& push, Error why);
  void DropPending(PushId id, Push& push);
  // Releases the pins and slots of a completed write.
  void LetGo(const PendingWrite& write);
  void OnCompletion(KvTransport* transport, const WriteCompletion& completion);

  BlockManager* const blocks_;
  const Clock* const clock_;
  uint64_t last_id_ = 0;
  std::map<PushId, Push> pushes_;  // ordered: retries follow the order of grants
  std::unordered_map<KvTransport*, std::unordered_map<WriteId, Outstanding>> outstanding_;
  std::unordered_map<const KvTransport*, Lane> lanes_;
  ConversionStaging staging_;
  ConversionMetrics conversions_;
  std::optional<PushId> next_staged_;  // the first push that waits for staging memory
  std::vector<std::byte> made_;        // one layer of a block
  std::vector<PushId> changed_;
  Instant retry_at_ = kNever;
  double bytes_per_s_ = 0;
};

}  // namespace aisp
