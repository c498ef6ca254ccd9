// KeptAnswers: the answers to requests that carry an AnswerKey. A client that asks again under its
// key, through any router, receives the same from the start.
//
// An answer is running (a request computes it), ended, or stopped before its end (its receivers
// left, or it failed); when asked for again, the rest is computed after what is kept. Ended and
// stopped ones are kept for `window`, or less when bytes or number exceed the limits: the oldest of
// the tenant with the most goes first. A running one then continues without being kept. An empty
// one is forgotten when it stops. Errors are not kept, since they are no answer. Plain state of the
// decode role.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/hash.h"
#include "common/ids.h"
#include "proto/link.h"

namespace aisp {

using RequestKey = StrongId<struct RequestKeyTag, uint64_t>;

class KeptAnswers {
 public:
  struct Options {
    Duration window = std::chrono::minutes(5);  // zero: nothing is kept
    size_t max_bytes = size_t{64} << 20;
    size_t max_answers = 16384;
  };
  struct Answer {
    std::string tenant;
    v1::AnswerKey key;
    std::vector<v1::TokenEvent> said;   // in order, without ids; in pieces of a message's size
    std::optional<RequestKey> running;  // the request that computes it
    bool ended = false;
    size_t bytes = 0;
    Instant since = kNever;  // when it stopped running, the start of its window
  };

  explicit KeptAnswers(const Options& options) : options_(options) {}

  // By tenant, key and index of `wire`, whatever its body; null: nothing is kept.
  const Answer* Find(const v1::GenerateRequest& wire) const;
  // `request` computes what `wire` asks for, from its start or after what is kept. Returns the
  // answer's name, valid until Stop; nullopt if it cannot be kept.
  std::optional<Hash128> Start(const v1::GenerateRequest& wire, RequestKey request);
  // Appends what is sent to the receivers. No effect if `request`'s answer is no longer kept.
  void Append(const Hash128& name, RequestKey request, const v1::TokenEvent& event);
  // `request` no longer computes it.
  void Stop(const Hash128& name, RequestKey request, Instant now);

  Instant NextExpiry() const;
  void Expire(Instant now);
  // Forgets all, without news.
  void Clear();

  std::vector<Hash128> Names() const;
  // Changes since the last call, by name: kept (true) or no longer (false).
  std::map<Hash128, bool> TakeNews() { return std::exchange(news_, {}); }
  bool has_news() const { return !news_.empty(); }

  size_t size() const { return answers_.size(); }
  size_t bytes() const { return bytes_; }
  // Answers dropped before the end of their window.
  uint64_t dropped() const { return dropped_; }

 private:
  Answer* RunningBy(const Hash128& name, RequestKey request);
  void Drop(const Hash128& name);
  // A tenant's answers; exists while it has any.
  struct Shelf {
    size_t answers = 0;
    size_t bytes = 0;
    std::deque<std::pair<Instant, Hash128>> idle;  // oldest first; may contain answers that run
                                                   // again or are gone
  };
  // The tenant's oldest answer that is not running; null: none.
  const Hash128* Oldest(Shelf* shelf);
  // Drops an answer that is not running, of a tenant with no fewer than `tenant`; false: there is
  // none.
  bool DropOldest(const std::string& tenant);
  void Grow(Answer* answer, size_t bytes);
  double ShareOf(const Shelf& shelf) const;

  const Options options_;
  std::unordered_map<Hash128, Answer> answers_;
  std::map<std::string, Shelf> shelves_;
  std::map<Hash128, bool> news_;
  size_t bytes_ = 0;
  uint64_t dropped_ = 0;
};

// The tokens of an answer that `wire` brings after a takeover.
std::span<const int32_t> EmittedTokens(const v1::GenerateRequest& wire);

}  // namespace aisp
