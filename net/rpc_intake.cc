#include "net/rpc_intake.h"

#include <utility>

namespace aisp {

Status RpcIntake::Begin(Call call, const std::string& party, Instant now,
                        std::function<void(const Error&)> give_up) {
  std::function<void(const Error&)> evicted;
  {
    const std::lock_guard lock(mutex_);
    const auto held = parties_.find(party);
    const bool party_full = held != parties_.end() && held->second >= limits_.reading_per_party;
    if (party_full || reading_.size() >= limits_.reading) {
      const std::optional<Call> slowest = Slowest(party, party_full, now);
      if (!slowest) {
        return ResourceExhausted(
            "the server reads all the requests that it can at one time (" +
            std::to_string(party_full ? limits_.reading_per_party : limits_.reading) +
            (party_full ? " of one client" : "") + "); try again soon");
      }
      evicted = std::move(reading_.at(*slowest).give_up);
      Forget(*slowest);
    }
    reading_.emplace(call, Reading{party, now, std::move(give_up)});
    ++parties_[party];
  }
  if (evicted) {
    evicted({Code::kResourceExhausted,
             "the request did not arrive while others waited for its place; send it at once"});
  }
  return {};
}

std::optional<RpcIntake::Call> RpcIntake::Slowest(const std::string& party, bool party_full,
                                                  Instant now) const {
  std::string of = party;
  if (!party_full) {
    size_t most = 0;
    for (const auto& [name, count] : parties_) {
      if (count > most || (count == most && name < of)) of = name;
      most = std::max(most, count);
    }
  }
  std::optional<Call> slowest;
  Instant since = now - kPatience;
  for (const auto& [call, reading] : reading_) {
    if (reading.party != of || reading.since > since) continue;
    since = reading.since;
    slowest = call;
  }
  return slowest;
}

void RpcIntake::Forget(Call call) {
  const auto it = reading_.find(call);
  if (it == reading_.end()) return;
  const auto party = parties_.find(it->second.party);
  if (--party->second == 0) parties_.erase(party);
  reading_.erase(it);
}

Status RpcIntake::Whole(Call call, size_t bytes) {
  const std::lock_guard lock(mutex_);
  Forget(call);
  if (bytes > limits_.bytes - whole_bytes_) {
    return ResourceExhausted("the requests being answered fill " + std::to_string(limits_.bytes) +
                             " bytes, the limit (http.max_total_body); try again soon");
  }
  whole_[call] = bytes;
  whole_bytes_ += bytes;
  return {};
}

void RpcIntake::End(Call call) {
  const std::lock_guard lock(mutex_);
  Forget(call);
  const auto it = whole_.find(call);
  if (it == whole_.end()) return;
  whole_bytes_ -= it->second;
  whole_.erase(it);
}

size_t RpcIntake::reading() const {
  const std::lock_guard lock(mutex_);
  return reading_.size();
}

}  // namespace aisp
