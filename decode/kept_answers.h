// KeptAnswers: what a decode worker has said to requests that carry an AnswerKey, so that a client
// that asks again under its key, through whatever router, hears the same from the start.
//
// An answer is running (a request computes it), ended, or stopped: its readers left, or it failed,
// before its end; whoever asks again has the rest computed behind what was said. Ended and stopped
// ones are kept for `window` and go earlier, the oldest first, where bytes or number are beyond
// their limits; a running one is then no longer kept and goes on. One of which nothing was said is
// forgotten when it stops. Errors are not kept: they are no answer. Plain state of the decode role.
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

  Instant NextExpiry() const {
    return idle_.empty() ? kNever : idle_.front().first + options_.window;
  }
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
  // Forgets the oldest that is not running; false: there is none.
  bool DropOldest();

  const Options options_;
  std::unordered_map<Hash128, Answer> answers_;
  std::deque<std::pair<Instant, Hash128>> idle_;  // oldest first; some run again or are gone
  std::map<Hash128, bool> news_;
  size_t bytes_ = 0;
  uint64_t dropped_ = 0;
};

// The tokens of an answer that `wire` brings with it, after a takeover.
std::span<const int32_t> EmittedTokens(const v1::GenerateRequest& wire);

}  // namespace aisp
