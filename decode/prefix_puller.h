// PrefixPuller: fetches the beginning of a prompt from a worker that has it in its cache, for
// requests that wait for that and go on without it, whatever becomes of it.
//
// It is a hand-off as any other (docs/kv-protocol.md), only that the writer computes nothing and is
// not waited for: session, PrefillRequest with `cached_only` and at once the Grant of blocks for
// what our cache lacks of it; NeedBlocks says what the holder holds of that, PrefillDone that it is
// written. What came is checked (epoch, tokens x layers, blocks), published and cached; who waited
// then finds it there. Requests with the same beginning share one pull.
//
// Bounds: pulls at a time, of one holder and of all; a pull that has not begun, or is not over,
// when the router said so is dropped. Its grant is given up as any grant is: the blocks come back
// by acknowledgement or death.
//
// Owned by the decode role; the engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/metrics.h"
#include "decode/lease_book.h"
#include "decode/prefill_peers.h"
#include "engine/engine.h"

namespace aisp {

// What became of a pull, for those that waited for it.
struct PullOutcome {
  v1::PrefixPull::Result result = v1::PrefixPull::NONE;
  std::string holder;
  std::string why;  // "" when all went well
  int32_t tokens = 0;
  uint64_t bytes = 0;
  std::string transport;
  Instant began = kNever;
  Instant ended = kNever;
  Duration moving{};     // from asking the holder to having it all
  Duration promoting{};  // of that, until it was in the holder's pool
};

// What shall be pulled, for one request.
struct PullWish {
  Hash128 root;
  std::span<const TokenId> tokens;  // of the whole request
  v1::PrefillRequest request;       // scope, adapter, tenant and trace of it
};

class PrefixPuller {
 public:
  struct Options {
    int32_t max_pulls = 32;
    int32_t max_pulls_of_one_holder = 4;
    Duration most_limit = std::chrono::seconds(10);  // no pull takes longer, whatever is asked
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // May not start another pull from inside.
    virtual void OnPulled(uint64_t pull, const PullOutcome& outcome) = 0;
    // Whether `address` may be granted so many blocks more.
    virtual bool MayGrant(const std::string& address, int32_t blocks) const = 0;
    virtual void GiveUpLease(Epoch epoch) = 0;
    virtual uint64_t NextTransfer() = 0;
  };
  struct Deps {
    Engine* engine = nullptr;
    const Clock* clock = nullptr;
    PrefillPeers* peers = nullptr;
    LeaseBook* leases = nullptr;
    const std::byte* host_pool = nullptr;  // null: what arrives is not verified
    Listener* listener = nullptr;
  };
  PrefixPuller(const Options& options, const Deps& deps) : options_(options), deps_(deps) {}

  void AddMetrics(Metrics& metrics, const MetricLabels& labels);

  // Begins one, or joins one that brings as much. 0: there is none to wait for, `*outcome` says
  // why.
  uint64_t Start(const v1::PrefixSource& source, const PullWish& wish, PullOutcome* outcome);
  // One that waits for it waits no more; nobody hears of a pull that nobody waits for.
  void Abandon(uint64_t pull);

  void OnSessionUp(const std::string& address);
  void OnSessionLost(const std::string& address, const Error& why);
  // False where it is about no pull.
  bool OnPeer(const std::string& address, const v1::PrefillToDecode& message);
  // The holder acknowledged a grant that nobody had asked back. False where it is none of a pull.
  bool OnGivenBack(uint64_t transfer_id);

  Instant NextTimer() const;
  void OnTimer(Instant now);
  size_t size() const { return pulls_.size(); }

 private:
  // kAsked: and granted. kBegun: the holder has said what it holds.
  enum class Phase : uint8_t { kDialling, kAsked, kBegun };
  struct Pull {
    std::string address;
    std::string holder;
    Phase phase = Phase::kDialling;
    int waiters = 1;
    Hash128 root;
    std::vector<TokenId> tokens;  // whole blocks
    v1::PrefillRequest request;   // but for its tokens
    Instant began;
    Instant asked = kNever;
    Instant begin_by;
    Instant over_by;
    Epoch epoch;  // kAsked, kBegun
    int32_t first_token = 0;
    int32_t end_token = 0;  // of what is granted, then of what the holder holds
  };
  using PullResult = v1::PrefixPull::Result;

  uint64_t Join(const std::string& address, const PullWish& wish, size_t tokens);
  // "": there is room for one more.
  std::string Full(const std::string& address) const;
  // NONE: it is under way. Else why not, and nobody has heard of it.
  PullOutcome Ask(uint64_t id, Pull& pull);
  void OnNeed(uint64_t id, Pull& pull, int64_t held);
  void SendGrant(uint64_t id, const Pull& pull, const RemoteGrant& grant);
  void OnDone(uint64_t id, Pull& pull, const v1::PrefillDone& done);
  // DATA_LOSS: what came is not what was granted.
  Status CheckDone(const Pull& pull, const v1::PrefillDone& done) const;
  void OnFailed(uint64_t id, const v1::PrefillFailed& failed);
  // Ends it without what it was to bring, towards the holder too.
  void Drop(uint64_t id, PullResult result, const std::string& why);
  void End(uint64_t id, PullOutcome outcome);
  void Count(const PullOutcome& outcome);

  const Options options_;
  const Deps deps_;
  std::map<uint64_t, Pull> pulls_;  // by transfer id
  std::map<PullResult, Counter> results_;
  Counter tokens_;
  Counter bytes_;
  Histogram seconds_;
};

}  // namespace aisp
