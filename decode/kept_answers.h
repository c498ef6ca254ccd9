// KeptAnswers: what a decode worker has said to requests that carry an AnswerKey, so that a client
// that asks again under its key, through whatever router, hears the same from the start.
//
// An answer is running (a request computes it), ended, or stopped: its readers left, or it failed,
// before its end; whoever asks again has the rest computed behind what was said. Ended and stopped
// ones are kept for `window` and go earlier where bytes or number are beyond their limits: the
// oldest of the tenant that has most of both. A running one is then no longer kept and goes on. One
// of which nothing was said is forgotten when it stops. Errors are not kept: they are no answer.
// Plain state of the decode role.
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
    std::vector<v1::TokenEvent> said;   // in order, without ids; pieces of a message's size
    std::optional<RequestKey> running;  // by which request
    bool ended = false;
    size_t bytes = 0;
    Instant since = kNever;  // not running; its window begins
  };

  explicit KeptAnswers(const Options& options) : options_(options) {}

  // Under the tenant, key and index of `wire`, whatever its body; null: nothing is kept.
  const Answer* Find(const v1::GenerateRequest& wire) const;
  // `request` computes what `wire` asks for, from its start or behind what is kept. Nothing where
  // that cannot be kept; else the name of the answer, until Stop.
  std::optional<Hash128> Start(const v1::GenerateRequest& wire, RequestKey request);
  // It goes to the answer's readers. Does nothing when what `request` computes is kept no more.
  void Append(const Hash128& name, RequestKey request, const v1::TokenEvent& event);
  // `request` computes it no more.
  void Stop(const Hash128& name, RequestKey request, Instant now);

  Instant NextExpiry() const;
  void Expire(Instant now);
  // Forgets all, and tells nobody.
  void Clear();

  std::vector<Hash128> Names() const;
  // By name: what is kept (true) or no longer (false) since the last call.
  std::map<Hash128, bool> TakeNews() { return std::exchange(news_, {}); }
  bool has_news() const { return !news_.empty(); }

  size_t size() const { return answers_.size(); }
  size_t bytes() const { return bytes_; }
  // Before the end of their window.
  uint64_t dropped() const { return dropped_; }

 private:
  Answer* RunningBy(const Hash128& name, RequestKey request);
  void Drop(const Hash128& name);
  // Of a tenant; there is one as long as it has answers.
  struct Shelf {
    size_t answers = 0;
    size_t bytes = 0;
    std::deque<std::pair<Instant, Hash128>> idle;  // oldest first; some run again or are gone
  };
  // Of its answers that do not run the oldest; null: there is none.
  const Hash128* Oldest(Shelf* shelf);
  // Forgets one that is not running, of who has no less than `tenant`; false: there is none.
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

// The tokens of an answer that `wire` brings with it, after a takeover.
std::span<const int32_t> EmittedTokens(const v1::GenerateRequest& wire);

}  // namespace aisp
