#include "engine/sequence_table.h"

#include <algorithm>
#include <set>

#include "common/check.h"

namespace aisp {
namespace {

constexpr size_t kEndedTimesKept = 4096;

}  // namespace

bool Precedes(const Sequence& a, const Sequence& b) {
  const int64_t mine = a.standing(), other = b.standing();
  if (mine != other) return mine > other;
  if (a.request.priority != b.request.priority) return a.request.priority > b.request.priority;
  return a.arrival < b.arrival;
}

int32_t Sequence::match_limit() const {
  if (request.pooling == Pooling::kMean || request.pooling == Pooling::kFirst) return 0;
  return scores() ? scored - 1 : INT32_MAX;
}

SequenceTable::SequenceTable(int32_t max_slots) {
  for (int32_t slot = max_slots - 1; slot >= 0; --slot) free_slots_.push_back(slot);
}

Sequence& SequenceTable::Add(SequenceRequest request) {
  auto owned = std::make_unique<Sequence>();
  Sequence& s = *owned;
  s.id = SequenceId(next_id_);
  s.arrival = next_id_;
  ++next_id_;
  s.request = std::move(request);
  s.scored = std::max(1, s.request.prompt_logprobs_from);
  s.account = shares_.Enter(s.request.tenant);
  sequences_.emplace(s.id, std::move(owned));
  ++alive_;
  ++version_;
  switch (s.request.kv_source) {
    case KvSource::kLocal:
      s.state = SequenceState::kWaiting;
      break;
    case KvSource::kPrefillOnly:
      s.state = SequenceState::kGated;
      break;
    case KvSource::kRemote:
      s.state = SequenceState::kAwaitingKv;
      break;
  }
  Enter(s);
  return s;
}

Sequence* SequenceTable::Find(SequenceId id) const {
  const auto it = sequences_.find(id);
  if (it == sequences_.end() || it->second->state == SequenceState::kEnded) return nullptr;
  return it->second.get();
}

void SequenceTable::SetState(Sequence& s, SequenceState state) {
  AISP_CHECK(s.state != SequenceState::kEnded);
  if (s.state == state) return;
  ++version_;
  Leave(s);
  s.state = state;
  Enter(s);
  if (state != SequenceState::kEnded) return;
  --alive_;
  shares_.Leave(std::exchange(s.account, nullptr));
  ended_times_[s.id] = s.times;
  ended_order_.push_back(s.id);
  if (ended_order_.size() > kEndedTimesKept) {
    ended_times_.erase(ended_order_.front());
    ended_order_.pop_front();
  }
}

void SequenceTable::Promote(Sequence& s) {
  const bool queued = s.state == SequenceState::kWaiting || s.state == SequenceState::kGated;
  if (queued) Leave(s);
  s.request.tenant.service_class = ServiceClass::kInteractive;
  if (queued) Enter(s);
  ++version_;
}

void SequenceTable::Erase(Sequence& s) {
  AISP_CHECK(s.state == SequenceState::kEnded && s.rows_in_flight == 0);
  sequences_.erase(SequenceId(s.id));
}

SequenceTimes SequenceTable::Times(SequenceId id) const {
  if (const auto it = sequences_.find(id); it != sequences_.end()) return it->second->times;
  if (const auto it = ended_times_.find(id); it != ended_times_.end()) return it->second;
  return {};
}

void SequenceTable::Leave(Sequence& s) {
  switch (s.state) {
    case SequenceState::kGated:
      return Remove(gated_, s);
    case SequenceState::kWaiting:
      return Remove(waiting_, s);
    case SequenceState::kRunning:
      free_slots_.push_back(s.slot);
      s.slot = -1;
      return Remove(running_, s);
    case SequenceState::kAwaitingKv:
      --awaiting_;
      return;
    case SequenceState::kHolding:
    case SequenceState::kEnded:
      return;
  }
}

void SequenceTable::Enter(Sequence& s) {
  switch (s.state) {
    case SequenceState::kGated:
      return InsertByPrecedence(gated_, s);
    case SequenceState::kWaiting:
      return InsertByPrecedence(waiting_, s);
    case SequenceState::kRunning:
      AISP_CHECK(!free_slots_.empty());
      s.slot = free_slots_.back();
      free_slots_.pop_back();
      running_.push_back(&s);
      return;
    case SequenceState::kAwaitingKv:
      ++awaiting_;
      return;
    case SequenceState::kHolding:
    case SequenceState::kEnded:
      return;
  }
}

void SequenceTable::CheckInvariants() const {
  size_t waiting = 0, gated = 0, running = 0;
  int32_t awaiting = 0, alive = 0;
  std::set<int32_t> slots(free_slots_.begin(), free_slots_.end());
  AISP_CHECK_MSG(slots.size() == free_slots_.size(), "a slot is free twice");
  const auto in = [](const Queue& queue, const Sequence* s) {
    return std::count(queue.begin(), queue.end(), s) == 1;
  };
  for (const auto& [id, owned] : sequences_) {
    const Sequence* const s = owned.get();
    AISP_CHECK(s->id == id);
    alive += s->state != SequenceState::kEnded ? 1 : 0;
    switch (s->state) {
      case SequenceState::kWaiting:
        ++waiting;
        AISP_CHECK_MSG(in(waiting_, s), "a waiting sequence is not in its queue");
        break;
      case SequenceState::kGated:
        ++gated;
        AISP_CHECK_MSG(in(gated_, s), "a gated sequence is not in its queue");
        break;
      case SequenceState::kRunning:
        ++running;
        AISP_CHECK_MSG(in(running_, s), "a running sequence is not in its queue");
        AISP_CHECK_MSG(s->slot >= 0 && slots.insert(s->slot).second,
                       "two running sequences share a slot, or it is free");
        break;
      case SequenceState::kAwaitingKv:
        ++awaiting;
        break;
      case SequenceState::kHolding:
      case SequenceState::kEnded:
        break;
    }
    if (s->state != SequenceState::kRunning) AISP_CHECK_MSG(s->slot < 0, "a slot without a run");
    AISP_CHECK_MSG((s->account == nullptr) == (s->state == SequenceState::kEnded),
                   "a sequence that lives has its tenant's account, a husk has none");
  }
  AISP_CHECK_MSG(waiting == waiting_.size() && gated == gated_.size() &&
                     running == running_.size() && awaiting == awaiting_ && alive == alive_,
                 "a queue holds a sequence of another state, or a counter is wrong");
}

void SequenceTable::InsertByPrecedence(Queue& queue, Sequence& s) {
  const auto at =
      std::upper_bound(queue.begin(), queue.end(), &s,
                       [](const Sequence* a, const Sequence* b) { return Precedes(*a, *b); });
  queue.insert(at, &s);
}

void SequenceTable::Remove(Queue& queue, Sequence& s) {
  const auto at = std::find(queue.begin(), queue.end(), &s);
  AISP_CHECK(at != queue.end());
  queue.erase(at);
}

}  // namespace aisp
