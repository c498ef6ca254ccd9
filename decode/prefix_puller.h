// PrefixPuller: fetches a prompt's prefix from a worker that has it cached. The requests wait for
// it and continue whatever the outcome.
//
// It is a hand-off like any other (docs/kv-protocol.md), except that the writer computes nothing:
// session, PrefillRequest with `cached_only` and in it the Grant of blocks for what our cache lacks
// (for an older holder: right after it); NeedBlocks says which part the holder has, PrefillDone
// that it is written. The blocks are checked (epoch, tokens x layers, contents), published and
// cached, where the waiting requests hit them. Requests with the same prefix share one pull.
//
// Bounds: concurrent pulls per holder and in total. A pull that has not begun or ended by the
// router's time limits is dropped, and its grant revoked like any other: the blocks return by
// acknowledgement or death.
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

// The outcome of a pull, for the requests that waited.
struct PullOutcome {
  v1::PrefixPull::Result result = v1::PrefixPull::NONE;
  std::string holder;
  std::string why;  // "" on success
  int32_t tokens = 0;
  uint64_t bytes = 0;
  std::string transport;
  Instant began = kNever;
  Instant ended = kNever;
  Duration moving{};     // from the request until everything has arrived
  Duration promoting{};  // the part of it until it was in the holder's pool
};

// What to pull, for one request.
struct PullWish {
  Hash128 root;
  std::span<const TokenId> tokens;  // of the whole request
  v1::PrefillRequest request;       // its scope, adapter, tenant and trace are used
};

class PrefixPuller {
 public:
  struct Options {
    int32_t max_pulls = 32;
    int32_t max_pulls_of_one_holder = 4;
    Duration most_limit = std::chrono::seconds(10);  // upper limit for any pull
  };
  class Listener {
   public:
    virtual ~Listener() = default;
    // Must not start another pull from inside.
    virtual void OnPulled(uint64_t pull, const PullOutcome& outcome) = 0;
    // Whether `address` may be granted `blocks` more.
    virtual bool MayGrant(const std::string& address, int32_t blocks) const = 0;
    virtual void GiveUpLease(Epoch epoch) = 0;
    virtual uint64_t NextTransfer() = 0;
  };
  struct Deps {
    Engine* engine = nullptr;
    const Clock* clock = nullptr;
    PrefillPeers* peers = nullptr;
    LeaseBook* leases = nullptr;
    const std::byte* host_pool = nullptr;  // null: no verification
    Listener* listener = nullptr;
  };
  PrefixPuller(const Options& options, const Deps& deps) : options_(options), deps_(deps) {}

  void AddMetrics(Metrics& metrics, const MetricLabels& labels);

  // Starts a pull, or joins one that brings as much. 0: there is nothing to wait for, `*outcome`
  // says why.
  uint64_t Start(const v1::PrefixSource& source, const PullWish& wish, PullOutcome* outcome);
  // One waiting request leaves; a pull without any reports nothing.
  void Abandon(uint64_t pull);

  void OnSessionUp(const std::string& address);
  void OnSessionLost(const std::string& address, const Error& why);
  // False if it does not concern a pull.
  bool OnPeer(const std::string& address, const v1::PrefillToDecode& message);
  // The holder acknowledged a grant that was not revoked. False if it is not of a pull.
  bool OnGivenBack(uint64_t transfer_id);

  Instant NextTimer() const;
  void OnTimer(Instant now);
  size_t size() const { return pulls_.size(); }

 private:
  // kAsked: request and grant were sent. kBegun: the holder said what it has.
  enum class Phase : uint8_t { kDialling, kAsked, kBegun };
  struct Pull {
    std::string address;
    std::string holder;
    Phase phase = Phase::kDialling;
    int waiters = 1;
    Hash128 root;
    std::vector<TokenId> tokens;  // whole blocks
    v1::PrefillRequest request;   // without tokens
    Instant began;
    Instant asked = kNever;
    Instant begin_by;
    Instant over_by;
    Epoch epoch;  // kAsked, kBegun
    int32_t first_token = 0;
    int32_t end_token = 0;  // end of the granted tokens, then of those that the holder has
  };
  using PullResult = v1::PrefixPull::Result;

  uint64_t Join(const std::string& address, const PullWish& wish, size_t tokens);
  // Why no further pull from `address` may start; "": it may.
  std::string Full(const std::string& address) const;
  // NONE: in progress. Otherwise why not, and nothing was sent.
  PullOutcome Ask(uint64_t id, Pull& pull);
  void OnNeed(uint64_t id, Pull& pull, int64_t held);
  v1::Grant GrantOf(uint64_t id, const Pull& pull, const RemoteGrant& grant) const;
  void OnDone(uint64_t id, Pull& pull, const v1::PrefillDone& done);
  // DATA_LOSS: what came does not match the grant.
  Status CheckDone(const Pull& pull, const v1::PrefillDone& done) const;
  void OnFailed(uint64_t id, const v1::PrefillFailed& failed);
  // Ends it unsuccessfully, also towards the holder.
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
