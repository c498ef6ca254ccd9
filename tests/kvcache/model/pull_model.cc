#include "tests/kvcache/model/pull_model.h"

#include <algorithm>
#include <utility>

#include "common/check.h"

namespace aisp {
namespace {

using Kind = PullModel::Event::Kind;

}  // namespace

PullModel::PullModel(const PullConfig& config)
    : config_(config), pullers_(static_cast<size_t>(config.pullers)) {
  StartHolder();
  const auto blocks = holder_->Reserve(HolderBlocks())->Take(PinKind::kSequence);
  for (int unit = 0; unit < Units(); ++unit) {
    const BlockId block = blocks[static_cast<size_t>(unit / config_.holder_units)];
    Words(memory_, block, config_.holder_units)[static_cast<size_t>(unit % config_.holder_units)] =
        Word(unit);
  }
  holder_->Publish(kRoot, Prefix(), blocks, 0);
  holder_->Unpin(blocks, PinKind::kSequence);
  for (Puller& p : pullers_) StartPuller(p);
}

int PullModel::Units() const {
  return config_.prefix_blocks * std::max(config_.holder_units, config_.puller_units);
}

std::unique_ptr<BlockManager> PullModel::MakePool(int units) const {
  BlockManager::Options options;
  options.layout.num_layers = 1;
  options.layout.num_kv_heads = 1;
  options.layout.head_dim = 1;
  options.layout.block_tokens = 16 * units;
  options.layout.num_blocks = Units() / units;
  return std::make_unique<BlockManager>(options);
}

void PullModel::StartHolder() {
  holder_ = MakePool(config_.holder_units);
  memory_.assign(static_cast<size_t>(Units()), 0);
  holder_process_ = next_process_++;
  pushes_.clear();
  promotion_.reset();
  staging_.clear();
  staging_taken_ = false;
}

void PullModel::StartPuller(Puller& p) {
  const int pulls = p.pulls, computes = p.computes;
  p = {};
  p.pulls = pulls;
  p.computes = computes;
  p.blocks = MakePool(config_.puller_units);
  p.memory.assign(static_cast<size_t>(Units()), 0);
  p.process = next_process_++;
}

std::vector<TokenId> PullModel::Prefix(int units) {
  return std::vector<TokenId>(static_cast<size_t>(units) * 16, 1);
}

std::vector<BlockId> PullModel::Match(BlockManager& blocks) const {
  return blocks.MatchAndPin(kRoot, Prefix(), Units() * 16);
}

int PullModel::Held(const Push& push) const {
  const int units = static_cast<int>(push.source.size()) * config_.holder_units;
  const bool up = config_.bug == PullBug::kPartOfABlock;
  return (units + (up ? config_.puller_units - 1 : 0)) / config_.puller_units;
}

int PullModel::Wanted(const Push& push) const {
  return std::min(Held(push), static_cast<int>(push.target.size()));
}

std::vector<uint64_t> PullModel::Read(const Push& push) const {
  std::vector<uint64_t> words;
  const int first = push.landed * config_.puller_units;
  for (int unit = first; unit < first + config_.puller_units; ++unit) {
    const auto each = static_cast<size_t>(config_.holder_units);
    const size_t block = static_cast<size_t>(unit) / each;
    const size_t at = static_cast<size_t>(unit) % each;
    const bool there = block < push.source.size();
    words.push_back(there ? memory_[static_cast<size_t>(push.source[block].value) * each + at]
                          : kForeign);
  }
  return words;
}

// ---- Possible events ----

std::vector<PullModel::Event> PullModel::Possible() const {
  std::vector<Event> events;
  const auto add = [&](Kind kind, int which = 0) { events.push_back({kind, which}); };
  for (int i = 0; i < config_.pullers; ++i) {
    const Puller& p = pullers_[static_cast<size_t>(i)];
    if (p.link && p.phase == Phase::kIdle && p.pulls < config_.pulls &&
        p.blocks->Available() == PullerBlocks())
      add(Kind::kPull, i);
    if (p.phase != Phase::kIdle) add(Kind::kLate, i);
    if (p.link && !p.to_holder.empty()) add(Kind::kToHolder, i);
    if (p.link && !p.to_puller.empty()) add(Kind::kToPuller, i);
    if (!p.notes.empty()) add(Kind::kNote, i);
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
    if (push.writing) add(Kind::kLand, static_cast<int>(i));
    if (push.promoting && !push.stopped) add(Kind::kImpatient, static_cast<int>(i));
    if (push.epoch != 0 && !push.writing && !push.stopped && push.landed < Wanted(push) &&
        !staging_taken_)
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
  const std::vector<BlockId> had = Match(*p.blocks);
  p.blocks->Unpin(had, PinKind::kSequence);
  // A puller with a partial prefix hit requests all of it again: more orders, the same rules.
  p.granted = p.blocks->Reserve(PullerBlocks())->Take(PinKind::kSequence);
  p.epoch = Epoch(p.next_epoch++);
  p.blocks->BeginLease(p.epoch, p.granted);
  Lease lease;
  lease.epoch = p.epoch;
  lease.writer.address = "h";
  lease.writer.incarnation = holder_process_;
  lease.blocks = PullerBlocks();
  lease.transfer_id = p.pull;
  p.leases.Open(lease);
  p.phase = Phase::kAsked;
  p.held = PullerBlocks();
  if (!config_.grant_apart) {
    p.to_holder.push_back({Message::Kind::kRequest, p.pull, p.epoch.value, 0, p.granted});
    return;
  }
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
  // If this side copies, it stops the copies itself.
  if (config_.owner_copies || config_.bug == PullBug::kLateIsOver) EndLease(p, p.epoch);
}

void PullModel::Publish(Puller& p, int blocks) {
  p.blocks->Publish(kRoot, Prefix(blocks * config_.puller_units),
                    std::span(p.granted).first(static_cast<size_t>(blocks)), 0);
}

void PullModel::OnDone(Puller& p, const Message& m) {
  if (m.epoch != p.epoch.value || m.blocks != p.held) return Drop(p);
  EndLease(p, p.epoch);
  const int whole = config_.bug == PullBug::kHeldIgnored ? PullerBlocks() : p.held;
  if (config_.bug != PullBug::kPublishedEarly) Publish(p, whole);
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
  if (config_.bug == PullBug::kPublishedEarly) Publish(p, p.held);
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
  push.source = Match(*holder_);
  if (Held(push) > 0) {
    p.to_puller.push_back({Message::Kind::kNeed, push.pull, 0, Held(push)});
    if (config_.bug == PullBug::kHolderUnpinned) Unpin(push);
    return;
  }
  Unpin(push);
  p.to_puller.push_back({Message::Kind::kMissed, push.pull});
  push.blind = config_.bug == (promoted ? PullBug::kPromotedMissKeeps : PullBug::kMissKeepsGrant);
  push.stopped = !push.blind;
}

// Whether the missing part of the prefix is being promoted from the tier, now or already.
bool PullModel::Promote() {
  if (!config_.tier || promotion_) return promotion_.has_value();
  Promotion p;
  p.blocks = Match(*holder_);
  p.matched = p.blocks.size();
  const auto missing = HolderBlocks() - static_cast<int32_t>(p.matched);
  auto fresh = missing > 0 ? holder_->Reserve(missing) : Result<Reservation>(Reservation());
  if (missing == 0 || !fresh) {
    holder_->Unpin(p.blocks, PinKind::kSequence);
    return false;
  }
  for (const BlockId block : fresh->Take(PinKind::kSequence)) {
    std::ranges::fill(Words(memory_, block, config_.holder_units), kUnloaded);
    p.blocks.push_back(block);
  }
  if (config_.bug == PullBug::kPublishedBeforeLoad)
    holder_->Publish(kRoot, Prefix(), p.blocks, static_cast<int32_t>(p.matched));
  promotion_ = std::move(p);
  return true;
}

// Publishes what has arrived, and gives it out before anything else can evict it.
void PullModel::EndPromotion() {
  const size_t good = promotion_->matched + promotion_->loaded;
  if (promotion_->loaded > 0)
    holder_->Publish(kRoot, Prefix(static_cast<int>(good) * config_.holder_units),
                     std::span(promotion_->blocks).first(good),
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
  if (m.kind == Message::Kind::kRequest) OnRequest(puller, m);
  if (m.kind == Message::Kind::kRequest && config_.grant_apart) return;
  const bool any = config_.bug == PullBug::kEpochOfAnyReader;
  for (Push& push : pushes_) {
    if (push.blind) return;
    const bool its = push.puller == puller && push.process == p.process;
    if (m.kind != Message::Kind::kRevoke && its && push.pull == m.pull) {
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

// Converted data is made when the write starts; else the write reads the pool until it lands.
void PullModel::Start(Push& push) {
  push.writing = true;
  if (config_.converts) {
    staging_ = Read(push);
    staging_taken_ = config_.bug != PullBug::kStagingReused;
  }
  if (config_.bug == PullBug::kUnpinnedTooEarly && push.landed + 1 == Wanted(push)) Unpin(push);
}

void PullModel::Land(Push& push) {
  push.writing = false;
  const std::vector<uint64_t> words = config_.converts ? staging_ : Read(push);
  staging_taken_ = false;
  const auto at = static_cast<size_t>(push.landed++);
  Puller& p = pullers_[static_cast<size_t>(push.puller)];
  if (push.process != p.process) return;  // the memory of a dead process
  const Lease* lease = p.leases.Find(Epoch(push.epoch));
  const bool open = lease != nullptr && lease->writer.incarnation == holder_process_;
  // The epoch gate of a side that copies.
  if (config_.owner_copies && !open && config_.bug != PullBug::kEpochUnchecked) return;
  if (!open) Fail("a write landed in a block that was not granted to its writer any more");
  std::ranges::copy(words, Words(p.memory, push.target[at], config_.puller_units).begin());
}

void PullModel::Settle() {
  for (size_t i = 0; i < pushes_.size();) {
    Push& push = pushes_[i];
    const bool whole =
        push.epoch != 0 && !push.blind && !push.promoting && push.landed == Wanted(push);
    const bool early = push.stopped && config_.bug == PullBug::kAckBeforeWrite;
    const bool over = !push.writing && (push.stopped || whole);
    Puller& p = pullers_[static_cast<size_t>(push.puller)];
    if ((over || early) && !push.told && p.link && p.process == push.process && push.epoch != 0) {
      push.told = true;
      const bool all = push.landed == static_cast<int>(push.target.size());
      p.to_puller.push_back(
          push.stopped ? Message{Message::Kind::kFence, 0, push.epoch}
                       : Message{Message::Kind::kDone, push.pull, push.epoch, push.landed});
      if (config_.notes && !push.stopped && all) p.notes.push_back(p.to_puller.back());
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

void PullModel::Overwrite(BlockManager& blocks, std::vector<uint64_t>& memory, int units) {
  const auto taken = blocks.Reserve(1)->Take(PinKind::kSequence);
  std::ranges::fill(Words(memory, taken[0], units), kForeign);
  blocks.Unpin(taken, PinKind::kSequence);
}

void PullModel::LoseLink(int puller) {
  Puller& p = pullers_[static_cast<size_t>(puller)];
  p.link = false;
  if (p.phase != Phase::kIdle) Drop(p);
  p.to_holder.clear();
  p.to_puller.clear();
  p.notes.clear();
  for (Push& push : pushes_) {
    if (push.puller == puller && push.process == p.process) push.stopped = true;
  }
  Settle();
  if (config_.bug != PullBug::kLostLinkIsDeath) return;
  for (const Epoch epoch : p.leases.Revoked()) EndLease(p, epoch);
}

// Long: one case per kind of event.
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
    case Kind::kNote: {
      const Message m = p->notes.front();
      p->notes.pop_front();
      OnPuller(*p, m);
      break;
    }
    case Kind::kWrite:
      Start(pushes_[at]);
      break;
    case Kind::kLand:
      Land(pushes_[at]);
      Settle();
      break;
    case Kind::kEvict:
      ++evictions_;
      Overwrite(*holder_, memory_, config_.holder_units);
      break;
    case Kind::kCompute:
      ++p->computes;
      Overwrite(*p->blocks, p->memory, config_.puller_units);
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
      const size_t next = up.matched + up.loaded;
      const std::span<uint64_t> words = Words(memory_, up.blocks[next], config_.holder_units);
      for (size_t unit = 0; unit < words.size(); ++unit)
        words[unit] = Word(static_cast<int>(next * words.size() + unit));
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
