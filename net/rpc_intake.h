// RpcIntake: bounds the memory of clients' messages in gRPC, which delivers a message only when it
// is complete. So the number of messages being read is limited, in total and per party (as in
// net/intake_budget.h). Complete messages count until their call ends.
//
// At a limit, the message that has been in transit longest, of the party with the most, is given up
// if it had kPatience. So idle calls cannot keep others out. Any thread; no callback runs under the
// lock.
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
    size_t reading = 64;            // messages in transit
    size_t reading_per_party = 16;  // part of them for one party
    size_t bytes = 1 << 30;         // of complete messages
  };
  using Call = uint64_t;  // any unique number except 0

  explicit RpcIntake(const Limits& limits) : limits_(limits) {}

  // A message is about to be read. RESOURCE_EXHAUSTED: it must not be. `give_up` ends the call
  // while its message is in transit; it may be called from another call's Begin.
  Status Begin(Call call, const std::string& party, Instant now,
               std::function<void(const Error&)> give_up);
  // The message is complete and takes `bytes` until End. RESOURCE_EXHAUSTED: drop it.
  Status Whole(Call call, size_t bytes);
  // The call has ended in any way. Idempotent.
  void End(Call call);

  size_t reading() const;

 private:
  struct Reading {
    std::string party;
    Instant since;
    std::function<void(const Error&)> give_up;
  };
  // The call to give up so that `party` fits; nullopt when all began too recently.
  std::optional<Call> Slowest(const std::string& party, bool party_full, Instant now) const;
  void Forget(Call call);

  const Limits limits_;
  mutable std::mutex mutex_;
  std::unordered_map<Call, Reading> reading_;
  std::unordered_map<std::string, size_t> parties_;  // only those with messages in transit
  std::unordered_map<Call, size_t> whole_;
  size_t whole_bytes_ = 0;
};

}  // namespace aisp
