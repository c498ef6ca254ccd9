// PrefixHolder: gives other workers the prefixes that this one has in its cache, whatever its role
// is. Nothing is computed for it: the blocks are matched by their tokens, pinned while they are
// asked for and written, and stay where they are. What lies in a tier below the pool is brought
// into the cache first, for a bounded time and without holding up anything else; then what is there
// is given.
//
// A push: a request with `cached_only`, NeedBlocks with what is held, Grant, the writes,
// PrefillDone. The rules are those of any grant (docs/kv-protocol.md): nothing is written after
// Revoke, FenceAck follows the last completion. What is not held any more is said at once and is no
// fault.
//
// Bounds: max_pushes at a time, which pin at most a part of the pool; more are refused. A push
// whose grant does not come, or whose lease ends, is over.
//
// Part of PrefillRole, which owns the readers and the pusher: it hears here of what is not its own.
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
    Duration grant_limit = std::chrono::seconds(2);  // a grant comes by then
  };
  // What it needs of the role. Calls may end pushes of this holder.
  class Host {
   public:
    virtual ~Host() = default;
    virtual void SendToReader(ReaderId id, v1::PrefillToDecode message) = 0;
    virtual void SendFence(ReaderId id, Epoch epoch) = 0;
    // The reader's pool can no longer be written.
    virtual void FailReader(ReaderId id, const Error& error) = 0;
    // One of its transfers is over.
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
  // Each false where it is about no push of this holder.
  bool OnGrant(const Reader& reader, const v1::Grant& grant);
  bool OnCancel(const Reader& reader, uint64_t transfer_id);
  bool OnRevoke(const Reader& reader, Epoch epoch);
  bool OnPush(PushId push);
  uint64_t promoted() const { return promotions_; }
  // Promotions may have ended. Called before anything else can take what they brought.
  void OnTiers();
  // Something of this reader's epoch may still be written.
  bool Writes(const Reader& reader, Epoch epoch) const;

  // All pushes to it end; `error`: it is told why. Writes that had started are awaited.
  void DropReader(ReaderId id, const Error* error = nullptr);
  void OnEngineFailed(const Error& error);

  Instant NextTimer() const;
  void OnTimer(Instant now);
  // Those that only wait for their last completion included.
  size_t size() const { return pushes_.size(); }

 private:
  using Key = uint64_t;  // counts up
  // kPromoting: nothing of it is pinned here yet, and nothing was said; its grant may have come.
  enum class Phase : uint8_t { kPromoting, kAsked, kGranted, kFencing };
  struct Push {
    ReaderId reader;
    uint64_t transfer_id = 0;  // the reader's name for it
    std::string trace_id;
    Phase phase = Phase::kPromoting;
    Hash128 root;
    std::vector<TokenId> tokens;
    int64_t reader_has = 0;
    uint64_t promotion = 0;
    Instant promoted_by;          // kPromoting: then what is there is given
    std::vector<BlockId> blocks;  // of the prefix, pinned with kTier
    Instant received;
    Instant offered;
    Instant until;  // until kGranted: the grant comes before; then: the lease's end
    v1::Grant grant;
    Epoch epoch;  // once granted
    int32_t first_token = 0;
    int32_t end_token = 0;
    Instant granted;
    PushId push;                   // kGranted, kFencing
    std::vector<uint64_t> checks;  // of its blocks, where the reader asks for them
  };

  static bool Granted(const Push& push) { return push.epoch != Epoch(); }
  int32_t BlockTokens() const { return deps_.engine->blocks().layout().block_tokens; }
  // Of what is held, in whole blocks of ours, what is whole blocks of the reader's, too.
  int32_t HeldTokens(const Reader& reader, size_t blocks) const;
  int32_t PinnedBlocks() const;
  // One that is asked for or being written.
  Push* FindOpen(ReaderId reader, uint64_t transfer_id, Key* key);
  Status CheckGrant(const Reader& reader, size_t held_blocks, const v1::Grant& grant) const;
  // Says what is held, pinned from now on, or that nothing is; and writes where it was granted.
  void Offer(Key key);
  void Begin(Key key);
  std::vector<uint64_t> ChecksOf(const Push& push, const Reader& reader) const;
  // Tells the reader that it will not have it.
  void Refuse(ReaderId reader, uint64_t transfer_id, const Error& error);
  void Settle(Key key);
  void Finish(Key key);
  void Fail(Key key, const Error& error);
  // Without a word but FenceAck.
  void Abandon(Key key);
  void Erase(Key key);

  const Options options_;
  const Deps deps_;
  std::map<Key, Push> pushes_;
  std::map<PushId, Key> by_push_;
  Key last_ = 0;
  uint64_t promotions_ = 0;  // begun for others
  // What became of them, by label.
  Counter given_, missed_, busy_, late_, failed_, unwanted_;
  Counter promoted_;
  Counter tokens_;
  Counter bytes_;
};

}  // namespace aisp
