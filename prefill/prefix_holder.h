// PrefixHolder: gives other workers the prefixes in this worker's cache, whatever its role. It
// computes nothing: blocks are matched by their tokens, pinned while requested and written, and
// stay cached. Blocks in a lower tier are first brought into the cache, for a bounded time and
// without delaying other work; then what is there is given.
//
// A push: a request with `cached_only`, Grant (in the request or after it), NeedBlocks with what is
// held, the writes, PrefillDone. Writes start before NeedBlocks is sent, since sending takes
// longer. The rules are those of any grant (docs/kv-protocol.md): nothing is written after Revoke,
// and FenceAck follows the last completion. A prefix that is no longer held is reported at once and
// is no fault.
//
// Bounds: at most max_pushes at a time, which pin at most a fraction of the pool; more are refused.
// A push without a timely grant, or whose lease ends, is ended.
//
// Part of PrefillRole, which owns the readers and the pusher and passes on what concerns pushes.
// Engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "engine/engine.h"
#include "prefill/kv_pusher.h"
#include "prefill/readers.h"

namespace aisp {

class PrefixHolder {
 public:
  struct Options {
    int32_t max_pushes = 8;
    double max_pinned = 0.25;                        // of the pool
    Duration grant_limit = std::chrono::seconds(2);  // time limit for a grant
  };
  // What it needs from the role. Calls may end pushes of this holder.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void SendToReader(ReaderId id, v1::PrefillToDecode message) = 0;
    // Where the lane has notes: before the same message is sent, which the note may overtake.
    virtual void LeaveNote(ReaderId id, const v1::PrefillToDecode& done) = 0;
    virtual void SendFence(ReaderId id, Epoch epoch) = 0;
    // The reader's pool cannot be written any more.
    virtual void FailReader(ReaderId id, const Error& error) = 0;
    // One of its transfers has ended.
    virtual void OnTransferOver(ReaderId id) = 0;
  };
  struct Deps {
    Engine* engine = nullptr;
    const Clock* clock = nullptr;
    KvPusher* pusher = nullptr;
    Readers* readers = nullptr;
    const std::byte* host_pool = nullptr;  // null: no checks of blocks are sent
    Host* host = nullptr;
  };
  PrefixHolder(const Options& options, const Deps& deps) : options_(options), deps_(deps) {}

  void AddMetrics(Metrics& metrics, const MetricLabels& labels);
  void OnRequest(Reader& reader, const v1::PrefillRequest& request);
  // Each returns false if no push of this holder is concerned.
  bool OnGrant(const Reader& reader, const v1::Grant& grant);
  bool OnCancel(const Reader& reader, uint64_t transfer_id);
  bool OnRevoke(const Reader& reader, Epoch epoch);
  bool OnPush(PushId push);
  uint64_t promoted() const { return promotions_; }
  // Promotions may have ended. Call before anything else can take the blocks.
  void OnTiers();
  // Something of this reader's epoch may still be written.
  bool Writes(const Reader& reader, Epoch epoch) const;

  // Ends all pushes to it, with `error` as the reason. Started writes are awaited.
  void DropReader(ReaderId id, const Error* error = nullptr);
  void OnEngineFailed(const Error& error);

  Instant NextTimer() const;
  void OnTimer(Instant now);
  // Includes those that wait for their last completion.
  size_t size() const { return pushes_.size(); }

 private:
  using Key = uint64_t;  // counts up
  // kPromoting: nothing is pinned here and nothing was sent; the grant may have come already.
  enum class Phase : uint8_t { kPromoting, kAsked, kGranted, kFencing };
  struct Push {
    ReaderId reader;
    uint64_t transfer_id = 0;  // the reader's id of it
    std::string trace_id;
    Phase phase = Phase::kPromoting;
    Hash128 root;
    std::vector<TokenId> tokens;
    int64_t reader_has = 0;
    bool comes_granted = false;  // its grant is in the request
    bool told = false;           // NeedBlocks was sent
    uint64_t promotion = 0;
    Instant promoted_by;          // kPromoting: after this, what is there is given
    std::vector<BlockId> blocks;  // of the prefix, pinned with kTier
    Instant received;
    Instant offered;
    Instant until;  // before kGranted: limit for the grant; then: the lease's end
    v1::Grant grant;
    Epoch epoch;  // set when granted
    int32_t first_token = 0;
    int32_t end_token = 0;
    Instant granted;
    PushId push;                   // kGranted, kFencing
    std::vector<uint64_t> checks;  // of its blocks, if the reader wants them
  };

  static bool Granted(const Push& push) { return push.epoch != Epoch(); }
  int32_t BlockTokens() const { return deps_.engine->blocks().layout().block_tokens; }
  // The part of the held blocks that is whole blocks for the reader too.
  int32_t HeldTokens(const Reader& reader, size_t blocks) const;
  int32_t PinnedBlocks() const;
  // A push that is requested or being written.
  Push* FindOpen(ReaderId reader, uint64_t transfer_id, Key* key);
  Status CheckGrant(const Reader& reader, size_t held_blocks, const v1::Grant& grant) const;
  // Pins and announces what is held, or that nothing is; writes if already granted.
  void Offer(Key key);
  // Sends NeedBlocks, once.
  void Announce(Push& push);
  void Begin(Key key);
  std::vector<uint64_t> ChecksOf(const Push& push, const Reader& reader) const;
  // Tells the reader that it gets nothing.
  void Refuse(ReaderId reader, uint64_t transfer_id, const Error& error);
  void Settle(Key key);
  void Finish(Key key);
  void Fail(Key key, const Error& error);
  // Ends it, sending only FenceAck.
  void Abandon(Key key);
  void Erase(Key key);

  const Options options_;
  const Deps deps_;
  std::map<Key, Push> pushes_;
  std::map<PushId, Key> by_push_;
  Key last_ = 0;
  uint64_t promotions_ = 0;  // begun for others
  // Outcomes, by label.
  Counter given_, missed_, busy_, late_, failed_, unwanted_;
  Counter promoted_;
  Counter tokens_;
  Counter bytes_;
};

}  // namespace aisp
