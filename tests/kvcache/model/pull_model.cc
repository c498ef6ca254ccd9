#include "tests/kvcache/model/pull_model.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {
namespace {

using Kind = PullModel::Event::Kind;

struct EventName {
  Kind kind;
  const char* name;
};
constexpr EventName kNames[] = {{Kind::kPull, "pull"},
                                {Kind::kLate, "late"},
                                {Kind::kToHolder, "message to the holder of"},
                                {Kind::kToPuller, "message to puller"},
                                {Kind::kWrite, "write starts"},
                                {Kind::kLand, "write lands"},
                                {Kind::kEvict, "holder computes"},
                                {Kind::kCompute, "puller computes"},
                                {Kind::kBreak, "link breaks"},
                                {Kind::kConnect, "link comes up"},
                                {Kind::kHolderDies, "holder dies"},
                                {Kind::kDeathProven, "death proven"},
                                {Kind::kPullerDies, "puller dies"},
                                {Kind::kLoad, "a block comes up"},
                                {Kind::kLoadFails, "a block does not come up"},
                                {Kind::kImpatient, "holder waits no longer for"}};

}  // namespace

const char* BugName(PullBug bug) {
  switch (bug) {
    case PullBug::kNone:
      return "none";
    case PullBug::kHolderUnpinned:
      return "the holder holds nothing";
    case PullBug::kUnpinnedTooEarly:
      return "let go when the last write has started";
    case PullBug::kPublishedEarly:
      return "published before it came";
    case PullBug::kHeldIgnored:
      return "published beyond what was held";
    case PullBug::kEpochUnchecked:
      return "copies of any epoch";
    case PullBug::kEpochOfAnyReader:
      return "epochs of all pullers in one";
    case PullBug::kLateIsOver:
      return "reused when late";
    case PullBug::kMissKeepsGrant:
      return "a miss keeps its grant";
    case PullBug::kAckBeforeWrite:
      return "acknowledged while a write is under way";
    case PullBug::kLostLinkIsDeath:
      return "a lost link is taken for a death";
    case PullBug::kPublishedBeforeLoad:
      return "published before it came up from its tier";
    case PullBug::kPromotedMissKeeps:
      return "a miss after a promotion keeps its grant";
    case PullBug::kRevokedWhilePromoted:
      return "a grant that was given back while promoting is used";
  }
  return "";
}

std::string PullModel::ToString(const Event& event) {
  for (const EventName& each : kNames) {
    if (each.kind == event.kind) return each.name + (" " + std::to_string(event.which));
  }
  return "?";
}

PullModel::PullModel(const PullConfig& config)
    : config_(config), pullers_(static_cast<size_t>(config.pullers)) {
  StartHolder();
  const auto blocks = holder_->Reserve(config.prefix_blocks)->Take(PinKind::kSequence);
  for (size_t i = 0; i < blocks.size(); ++i)
    memory_[static_cast<size_t>(blocks[i].value)] = Word(i);
  holder_->Publish(kRoot, Prefix(), blocks, 0);
  holder_->Unpin(blocks, PinKind::kSequence);
  for (Puller& p : pullers_) StartPuller(p);
}

std::unique_ptr<BlockManager> PullModel::MakePool() const {
  BlockManager::Options options;
  options.layout.num_layers = 1;
  options.layout.num_kv_heads = 1;
  options.layout.head_dim = 1;
  options.layout.num_blocks = config_.prefix_blocks;
  return std::make_unique<BlockManager>(options);
}

void PullModel::StartHolder() {
  holder_ = MakePool();
  memory_.assign(static_cast<size_t>(config_.prefix_blocks), 0);
  holder_process_ = next_process_++;
  pushes_.clear();
  promotion_.reset();
}

void PullModel::StartPuller(Puller& p) {
  const int pulls = p.pulls, computes = p.computes;
  p = {};
  p.pulls = pulls;
  p.computes = computes;
  p.blocks = MakePool();
  p.memory.assign(static_cast<size_t>(config_.prefix_blocks), 0);
  p.process = next_process_++;
}

std::vector<TokenId> PullModel::Prefix() const {
  return Prefix(static_cast<size_t>(config_.prefix_blocks));
}
std::vector<TokenId> PullModel::Prefix(size_t blocks) {
  return std::vector<TokenId>(blocks * 16, 1);
}

// ---- What may happen ----

std::vector<PullModel::Event> PullModel::Possible() const {
  std::vector<Event> events;
  const auto add = [&](Kind kind, int which = 0) { events.push_back({kind, which}); };
  for (int i = 0; i < config_.pullers; ++i) {
    const Puller& p = pullers_[static_cast<size_t>(i)];
    if (p.link && p.phase == Phase::kIdle && p.pulls < config_.pulls &&
        p.blocks->Available() == config_.prefix_blocks)
      add(Kind::kPull, i);
    if (p.phase != Phase::kIdle) add(Kind::kLate, i);
    if (p.link && !p.to_holder.empty()) add(Kind::kToHolder, i);
    if (p.link && !p.to_puller.empty()) add(Kind::kToPuller, i);
    if (p.computes < config_.computes && p.blocks->Available() > 0) add(Kind::kCompute, i);
    if (p.link && link_breaks_ < config_.link_breaks) add(Kind::kBreak, i);
    if (!p.link) add(Kind::kConnect, i);
    const auto dead = [&](Epoch epoch) {
      return const_cast<LeaseBook&>(p.leases).Find(epoch)->writer.incarnation != holder_process_;
    };
    if (std::ranges::any_of(p.leases.Revoked(), dead)) add(Kind::kDeathProven, i);
  }
  for (size_t i = 0; i < pushes_.size(); ++i) {
    const Push& push = pushes_[i];
    const auto wanted = static_cast<int>(std::min(push.source.size(), push.target.size()));
    if (push.writing) add(Kind::kLand, static_cast<int>(i));
    if (push.promoting && !push.stopped) add(Kind::kImpatient, static_cast<int>(i));
    if (push.epoch != 0 && !push.writing && !push.stopped && push.landed < wanted)
      add(Kind::kWrite, static_cast<int>(i));
  }
  if (promotion_) add(Kind::kLoad);
  if (promotion_ && tier_faults_ < config_.tier_faults) add(Kind::kLoadFails);
  if (evictions_ < config_.evictions && holder_->Available() > 0) add(Kind::kEvict);
  if (holder_ends_ < config_.holder_ends) add(Kind::kHolderDies);
  if (puller_ends_ < config_.puller_ends) add(Kind::kPullerDies, 0);
  return events;
}

// ---- A worker that pulls (decode/prefix_puller.cc, decode/fencing.cc) ----

void PullModel::Ask(Puller& p) {
  ++p.pulls;
  p.pull = next_pull_++;
  const std::vector<BlockId> had =
      p.blocks->MatchAndPin(kRoot, Prefix(), config_.prefix_blocks * 16);
  p.blocks->Unpin(had, PinKind::kSequence);
  // One whose cache has some of it asks for all of it again: more orders, the same rules.
  p.granted = p.blocks->Reserve(config_.prefix_blocks)->Take(PinKind::kSequence);
  p.epoch = Epoch(p.next_epoch++);
  p.blocks->BeginLease(p.epoch, p.granted);
  Lease lease;
  lease.epoch = p.epoch;
  lease.writer.address = "h";
  lease.writer.incarnation = holder_process_;
  lease.blocks = config_.prefix_blocks;
  lease.transfer_id = p.pull;
  p.leases.Open(lease);
  p.phase = Phase::kAsked;
  p.held = config_.prefix_blocks;
  p.to_holder.push_back({Message::Kind::kRequest, p.pull});
  p.to_holder.push_back({Message::Kind::kGrant, p.pull, p.epoch.value, 0, p.granted});
}

void PullModel::EndLease(Puller& p, Epoch epoch) {
  p.leases.Close(epoch);
  p.blocks->EndLease(epoch);
}

void PullModel::Drop(Puller& p) {
  p.blocks->Unpin(p.granted, PinKind::kSequence);
  p.granted.clear();
  p.phase = Phase::kIdle;
  Lease* lease = p.leases.Find(p.epoch);
  AISP_CHECK(lease != nullptr);
  lease->revoked = true;
  if (p.link && lease->writer.incarnation == holder_process_)
    p.to_holder.push_back({Message::Kind::kRevoke, 0, p.epoch.value});
  // What this side copies it stops itself.
  if (config_.owner_copies || config_.bug == PullBug::kLateIsOver) EndLease(p, p.epoch);
}

void PullModel::OnDone(Puller& p, const Message& m) {
  if (m.epoch != p.epoch.value || m.blocks != p.held) return Drop(p);
  EndLease(p, p.epoch);
  const auto whole =
      static_cast<size_t>(config_.bug == PullBug::kHeldIgnored ? config_.prefix_blocks : p.held);
  if (config_.bug != PullBug::kPublishedEarly) {
    p.blocks->Publish(kRoot, Prefix(whole), std::span(p.granted).first(whole), 0);
  }
  p.blocks->Unpin(p.granted, PinKind::kSequence);
  p.granted.clear();
  p.phase = Phase::kIdle;
}

void PullModel::OnPuller(Puller& p, const Message& m) {
  if (m.kind == Message::Kind::kFence) {
    Lease* lease = p.leases.Find(Epoch(m.epoch));
    if (lease == nullptr || lease->writer.incarnation != holder_process_) return;
    if (!lease->revoked) {  // it gave up by itself
      p.blocks->Unpin(p.granted, PinKind::kSequence);
      p.granted.clear();
      p.phase = Phase::kIdle;
    }
    return EndLease(p, Epoch(m.epoch));
  }
  if (p.phase == Phase::kIdle || m.pull != p.pull) return;
  if (m.kind == Message::Kind::kMissed) return Drop(p);
  if (m.kind == Message::Kind::kDone) return OnDone(p, m);
  p.phase = Phase::kBegun;
  p.held = m.blocks;
  if (config_.bug == PullBug::kPublishedEarly) {
    const auto whole = static_cast<size_t>(p.held);
    p.blocks->Publish(kRoot, Prefix(whole), std::span(p.granted).first(whole), 0);
  }
}

// ---- The worker that holds it (prefill/prefix_holder.cc) ----

void PullModel::OnRequest(int puller, const Message& m) {
  Puller& p = pullers_[static_cast<size_t>(puller)];
  Push push;
  push.puller = puller;
  push.process = p.process;
  push.pull = m.pull;
  push.promoting = Promote();
  pushes_.push_back(std::move(push));
  if (!pushes_.back().promoting) Offer(pushes_.back());
}

void PullModel::Offer(Push& push) {
  Puller& p = pullers_[static_cast<size_t>(push.puller)];
  const bool promoted = std::exchange(push.promoting, false);
  push.source = holder_->MatchAndPin(kRoot, Prefix(), config_.prefix_blocks * 16);
  if (!push.source.empty()) {
    p.to_puller.push_back(
        {Message::Kind::kNeed, push.pull, 0, static_cast<int>(push.source.size())});
    if (config_.bug == PullBug::kHolderUnpinned) Unpin(push);
    return;
  }
  p.to_puller.push_back({Message::Kind::kMissed, push.pull});
  push.blind = config_.bug == (promoted ? PullBug::kPromotedMissKeeps : PullBug::kMissKeepsGrant);
  push.stopped = !push.blind;
}

// Whether what the pool lacks of the prefix comes up from the tier, now or already.
bool PullModel::Promote() {
  if (!config_.tier || promotion_) return promotion_.has_value();
  Promotion p;
  p.blocks = holder_->MatchAndPin(kRoot, Prefix(), config_.prefix_blocks * 16);
  p.matched = p.blocks.size();
  const auto missing = config_.prefix_blocks - static_cast<int32_t>(p.matched);
  auto fresh = missing > 0 ? holder_->Reserve(missing) : Result<Reservation>(Reservation());
  if (missing == 0 || !fresh) {
    holder_->Unpin(p.blocks, PinKind::kSequence);
    return false;
  }
  for (const BlockId block : fresh->Take(PinKind::kSequence)) {
    memory_[static_cast<size_t>(block.value)] = kUnloaded;
    p.blocks.push_back(block);
  }
  if (config_.bug == PullBug::kPublishedBeforeLoad)
    holder_->Publish(kRoot, Prefix(), p.blocks, static_cast<int32_t>(p.matched));
  promotion_ = std::move(p);
  return true;
}

// What has come is published, and given before anything else can take it.
void PullModel::EndPromotion() {
  const size_t good = promotion_->matched + promotion_->loaded;
  if (promotion_->loaded > 0)
    holder_->Publish(kRoot, Prefix(good), std::span(promotion_->blocks).first(good),
                     static_cast<int32_t>(promotion_->matched));
  holder_->Unpin(promotion_->blocks, PinKind::kSequence);
  promotion_.reset();
  for (Push& push : pushes_) {
    if (push.promoting && !push.stopped) Offer(push);
  }
  Settle();
}

void PullModel::OnHolder(int puller, const Message& m) {
  Puller& p = pullers_[static_cast<size_t>(puller)];
  if (m.kind == Message::Kind::kRequest) return OnRequest(puller, m);
  const bool any = config_.bug == PullBug::kEpochOfAnyReader;
  for (Push& push : pushes_) {
    if (push.blind) return;
    const bool its = push.puller == puller && push.process == p.process;
    if (m.kind == Message::Kind::kGrant && its && push.pull == m.pull) {
      push.epoch = m.epoch;
      push.target = m.granted;
      return;
    }
    if (m.kind == Message::Kind::kRevoke && (its || any) && push.epoch == m.epoch) {
      if (push.promoting && config_.bug == PullBug::kRevokedWhilePromoted) break;
      push.stopped = true;
      return Settle();
    }
  }
  // Nothing was written for it, and nothing will be; or all of it has landed.
  p.to_puller.push_back({Message::Kind::kFence, 0, m.epoch});
}

void PullModel::Unpin(Push& push) {
  if (push.pinned) holder_->Unpin(push.source, PinKind::kSequence);
  push.pinned = false;
}

void PullModel::Land(Push& push) {
  push.writing = false;
  const auto at = static_cast<size_t>(push.landed++);
  Puller& p = pullers_[static_cast<size_t>(push.puller)];
  if (push.process != p.process) return;  // the memory of a process that is gone
  const Lease* lease = p.leases.Find(Epoch(push.epoch));
  const bool open = lease != nullptr && lease->writer.incarnation == holder_process_;
  // The gate of a side that copies.
  if (config_.owner_copies && !open && config_.bug != PullBug::kEpochUnchecked) return;
  if (!open) Fail("a write landed in a block that was not granted to its writer any more");
  p.memory[static_cast<size_t>(push.target[at].value)] =
      memory_[static_cast<size_t>(push.source[at].value)];
}

void PullModel::Settle() {
  for (size_t i = 0; i < pushes_.size();) {
    Push& push = pushes_[i];
    const auto wanted = static_cast<int>(std::min(push.source.size(), push.target.size()));
    const bool whole = push.epoch != 0 && !push.blind && !push.promoting && push.landed == wanted;
    const bool early = push.stopped && config_.bug == PullBug::kAckBeforeWrite;
    const bool over = !push.writing && (push.stopped || whole);
    Puller& p = pullers_[static_cast<size_t>(push.puller)];
    if ((over || early) && !push.told && p.link && p.process == push.process && push.epoch != 0) {
      push.told = true;
      p.to_puller.push_back(
          push.stopped ? Message{Message::Kind::kFence, 0, push.epoch}
                       : Message{Message::Kind::kDone, push.pull, push.epoch, push.landed});
    }
    if (!over) {
      ++i;
      continue;
    }
    Unpin(push);
    pushes_.erase(pushes_.begin() + static_cast<ptrdiff_t>(i));
  }
}

// ---- Events ----

void PullModel::Overwrite(BlockManager& blocks, std::vector<uint64_t>& memory) {
  const auto taken = blocks.Reserve(1)->Take(PinKind::kSequence);
  memory[static_cast<size_t>(taken[0].value)] = kForeign;
  blocks.Unpin(taken, PinKind::kSequence);
}

void PullModel::LoseLink(int puller) {
  Puller& p = pullers_[static_cast<size_t>(puller)];
  p.link = false;
  if (p.phase != Phase::kIdle) Drop(p);
  p.to_holder.clear();
  p.to_puller.clear();
  for (Push& push : pushes_) {
    if (push.puller == puller && push.process == p.process) push.stopped = true;
  }
  Settle();
  if (config_.bug != PullBug::kLostLinkIsDeath) return;
  for (const Epoch epoch : p.leases.Revoked()) EndLease(p, epoch);
}

// Long: one case for each kind of event.
void PullModel::Do(const Event& event) {
  const auto at = static_cast<size_t>(event.which);
  Puller* p = at < pullers_.size() ? &pullers_[at] : nullptr;
  switch (event.kind) {
    case Kind::kPull:
      Ask(*p);
      break;
    case Kind::kLate:
      Drop(*p);
      break;
    case Kind::kToHolder: {
      const Message m = p->to_holder.front();
      p->to_holder.pop_front();
      OnHolder(event.which, m);
      Settle();
      break;
    }
    case Kind::kToPuller: {
      const Message m = p->to_puller.front();
      p->to_puller.pop_front();
      OnPuller(*p, m);
      break;
    }
    case Kind::kWrite:
      pushes_[at].writing = true;
      if (config_.bug == PullBug::kUnpinnedTooEarly &&
          pushes_[at].landed + 1 == static_cast<int>(pushes_[at].source.size()))
        Unpin(pushes_[at]);
      break;
    case Kind::kLand:
      Land(pushes_[at]);
      Settle();
      break;
    case Kind::kEvict:
      ++evictions_;
      Overwrite(*holder_, memory_);
      break;
    case Kind::kCompute:
      ++p->computes;
      Overwrite(*p->blocks, p->memory);
      break;
    case Kind::kBreak:
      ++link_breaks_;
      LoseLink(event.which);
      break;
    case Kind::kConnect:
      p->link = true;
      for (const Epoch epoch : p->leases.Revoked()) {
        if (p->leases.Find(epoch)->writer.incarnation == holder_process_)
          p->to_holder.push_back({Message::Kind::kRevoke, 0, epoch.value});
      }
      break;
    case Kind::kHolderDies:
      ++holder_ends_;
      pushes_.clear();
      for (int i = 0; i < config_.pullers; ++i) LoseLink(i);
      StartHolder();
      break;
    case Kind::kDeathProven:
      for (const Epoch epoch : p->leases.Revoked()) {
        if (p->leases.Find(epoch)->writer.incarnation != holder_process_) EndLease(*p, epoch);
      }
      break;
    case Kind::kPullerDies:
      ++puller_ends_;
      LoseLink(event.which);
      StartPuller(*p);
      p->link = false;
      break;
    case Kind::kLoad: {
      Promotion& up = *promotion_;
      memory_[static_cast<size_t>(up.blocks[up.matched + up.loaded].value)] =
          Word(up.matched + up.loaded);
      if (up.matched + ++up.loaded == up.blocks.size()) EndPromotion();
      break;
    }
    case Kind::kLoadFails:
      ++tier_faults_;
      EndPromotion();
      break;
    case Kind::kImpatient:
      Offer(pushes_[at]);
      Settle();
      break;
  }
  CheckContent();
}

}  // namespace aisp
