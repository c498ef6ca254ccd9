// RpcIntake: how much of gRPC's memory messages of clients may take. gRPC gives a server a message
// only when it is whole, so what is bounded is who is asked for one: so many messages may be on
// their way at one time, of all parties and of each (a party as in net/intake_budget.h). Whole
// messages count until their call ends.
//
// Who is slow makes room: where a bound is reached, the message that has been on its way for
// longest, of the party that has most, is given up, if it had kPatience. So that idle calls cannot
// keep others out. Any thread; nothing is called under the lock.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

class RpcIntake {
 public:
  static constexpr Duration kPatience = std::chrono::seconds(1);
  struct Limits {
    size_t reading = 64;            // messages on their way
    size_t reading_per_party = 16;  // of them
    size_t bytes = 1 << 30;         // of whole messages
  };
  using Call = uint64_t;  // a number of the caller's choice, not 0

  explicit RpcIntake(const Limits& limits) : limits_(limits) {}

  // A message is about to be read. RESOURCE_EXHAUSTED: it may not be. `give_up` ends a call of
  // which the message is on its way; it may be called from Begin of another call.
  Status Begin(Call call, const std::string& party, Instant now,
               std::function<void(const Error&)> give_up);
  // It is whole and takes so many bytes till End. RESOURCE_EXHAUSTED: it must be dropped.
  Status Whole(Call call, size_t bytes);
  // The call is over, whatever became of its message. Idempotent.
  void End(Call call);

  size_t reading() const;

 private:
  struct Reading {
    std::string party;
    Instant since;
    std::function<void(const Error&)> give_up;
  };
  // The call to give up for the sake of `party`; nothing when all were asked a moment ago.
  std::optional<Call> Slowest(const std::string& party, bool party_full, Instant now) const;
  void Forget(Call call);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::unordered_map<Call, Reading> reading_;
  std::unordered_map<std::string, size_t> parties_;  // only those with messages on their way
  std::unordered_map<Call, size_t> whole_;
  size_t whole_bytes_ = 0;
};

}  // namespace aisp
