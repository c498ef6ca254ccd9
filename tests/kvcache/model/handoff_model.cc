#include "tests/kvcache/model/handoff_model.h"

#include <algorithm>
#include <sstream>
#include <unordered_set>

#include "common/check.h"

namespace aisp {
namespace {

constexpr uint64_t kNothing = 0;

struct EventName {
  HandoffModel::Event::Kind kind;
  const char* name;
};
using Kind = HandoffModel::Event::Kind;
constexpr EventName kNames[] = {{Kind::kAsk, "ask"},
                                {Kind::kAskGranted, "ask with a grant"},
                                {Kind::kCancel, "cancel"},
                                {Kind::kExpire, "lease over"},
                                {Kind::kFinish, "finish"},
                                {Kind::kLocal, "compute locally"},
                                {Kind::kToWriter, "message to writer"},
                                {Kind::kToBusyWriter, "request to busy writer"},
                                {Kind::kToReader, "message to reader"},
                                {Kind::kNote, "note"},
                                {Kind::kHalf, "half a layer is computed"},
                                {Kind::kWrite, "write starts"},
                                {Kind::kLand, "write lands"},
                                {Kind::kBreak, "link breaks"},
                                {Kind::kConnect, "link comes up"},
                                {Kind::kWriterDies, "writer dies"},
                                {Kind::kWriterReplaced, "writer replaced"},
                                {Kind::kDeathProven, "death proven"},
                                {Kind::kReaderDies, "reader dies"},
                                {Kind::kStored, "copied to host"},
                                {Kind::kLoad, "fetch from host"},
                                {Kind::kLoaded, "fetched"}};

}  // namespace

const char* BugName(ProtocolBug bug) {
  switch (bug) {
    case ProtocolBug::kNone:
      return "none";
    case ProtocolBug::kLeaseEndsWithItsTime:
      return "blocks are reused when the lease is over";
    case ProtocolBug::kAnyoneAcknowledges:
      return "another process acknowledges";
    case ProtocolBug::kAckBeforeWrite:
      return "acknowledged while a write is under way";
    case ProtocolBug::kLostLinkIsDeath:
      return "a lost link is taken for a death";
    case ProtocolBug::kDoneUncounted:
      return "done without counting";
    case ProtocolBug::kCopyWithoutPin:
      return "copied without a pin";
    case ProtocolBug::kAckToSuccessor:
      return "acknowledged to the reader's successor";
    case ProtocolBug::kPromotionUnfinished:
      return "published before it is there";
    case ProtocolBug::kHalfConverted:
      return "converted from one block of two";
    case ProtocolBug::kStagingReused:
      return "converted into memory that a write still needs";
    case ProtocolBug::kGivenBackInUse:
      return "given back and written";
  }
  return "";
}

std::string HandoffModel::ToString(const Event& event) {
  for (const EventName& each : kNames) {
    if (each.kind == event.kind) return each.name + (" " + std::to_string(event.which));
  }
  return "?";
}

HandoffModel::HandoffModel(const HandoffConfig& config)
    : config_(config), requests_(static_cast<size_t>(config.requests)) {
  StartReader();
  writers_.push_back({next_incarnation_++, true, true, {}});
}

void HandoffModel::StartReader() {
  BlockManager::Options options;
  options.layout.num_layers = kLayers;
  options.layout.num_kv_heads = 1;
  options.layout.head_dim = 1;
  options.layout.num_blocks = config_.blocks;
  blocks_ = std::make_unique<BlockManager>(options);
  leases_ = {};
  ++pool_;
  next_epoch_ = 1;  // epochs start over: a writer of the old pool must not matter
  memory_.assign(static_cast<size_t>(config_.blocks), {kNothing, kNothing});
  store_.reset();
  load_.reset();
  host_.reset();
}

std::vector<TokenId> HandoffModel::Prompt(int request) const {
  return std::vector<TokenId>(16, static_cast<TokenId>(request + 1));
}

HandoffModel::WriterProcess* HandoffModel::Linked() {
  for (WriterProcess& p : writers_) {
    if (p.linked && p.alive && link_) return &p;
  }
  return nullptr;
}
const HandoffModel::WriterProcess* HandoffModel::Linked() const {
  return const_cast<HandoffModel*>(this)->Linked();
}

std::vector<HandoffModel::Event> HandoffModel::Possible() const {
  std::vector<Event> events;
  const auto add = [&](Kind kind, int which = 0) { events.push_back({kind, which}); };
  for (int i = 0; i < config_.requests; ++i) {
    const Request& r = requests_[static_cast<size_t>(i)];
    const bool idle = r.phase == Phase::kIdle && !r.promoting;
    const bool cached = blocks_->MatchLength(kRoot, Prompt(i), 16) > 0;
    const bool asks = idle && r.attempts < config_.attempts && Linked() != nullptr;
    if (asks) add(Kind::kAsk, i);
    if (asks && config_.early && !cached && blocks_->Available() > 0) add(Kind::kAskGranted, i);
    if (idle && blocks_->Available() > 0) add(Kind::kLocal, i);
    if (idle && host_ && host_->first == i && !load_ && !cached && blocks_->Available() > 0)
      add(Kind::kLoad, i);
    if (r.phase != Phase::kGone) add(Kind::kCancel, i);
    if (r.phase == Phase::kGranted) add(Kind::kExpire, i);
    if (r.phase == Phase::kRunning) add(Kind::kFinish, i);
  }
  if (link_ && !to_writer_.empty() && Linked() != nullptr) {
    add(Kind::kToWriter);
    const Message& next = to_writer_.front();
    if (next.kind == Message::Kind::kPrefill && next.epoch != 0) add(Kind::kToBusyWriter);
  }
  if (link_ && !to_reader_.empty()) add(Kind::kToReader);
  if (!notes_.empty()) add(Kind::kNote);
  int job = 0;
  for (const WriterProcess& p : writers_) {
    for (const WriteJob& j : p.jobs) {
      if (p.alive && j.writing) add(Kind::kLand, job);
      const bool open = p.alive && !j.stopped && !j.told;
      if (open && config_.converts && j.halves < 2 * kLayers) add(Kind::kHalf, job);
      if (open && MayWrite(p, j)) add(Kind::kWrite, job);
      ++job;
    }
  }
  if (link_ && link_breaks_ < config_.link_breaks) add(Kind::kBreak);
  if (!link_) add(Kind::kConnect);
  if (writer_ends_ < config_.writer_ends) {
    add(Kind::kWriterDies);
    add(Kind::kWriterReplaced);
  }
  if (reader_ends_ < config_.reader_ends) add(Kind::kReaderDies);
  for (size_t i = 0; i < writers_.size(); ++i) {
    const bool owes = std::ranges::any_of(leases_.Revoked(), [&](Epoch epoch) {
      return const_cast<LeaseBook&>(leases_).Find(epoch)->writer.incarnation ==
             writers_[i].incarnation;
    });
    if (!writers_[i].alive && owes) add(Kind::kDeathProven, static_cast<int>(i));
    // A replaced process is killed eventually.
    if (writers_[i].alive && !writers_[i].linked) add(Kind::kWriterDies, static_cast<int>(i) + 1);
  }
  if (store_) add(Kind::kStored);
  if (load_) add(Kind::kLoaded);
  return events;
}

// ---- The decode role (remote_prefill.cc, fencing.cc) ----

void HandoffModel::Publish(Request& r, int request) {
  blocks_->Publish(kRoot, Prompt(request), r.blocks, 0);
  r.phase = Phase::kRunning;
  if (!config_.tiers || store_ || (host_ && host_->first == request)) return;
  const bool pinned = config_.bug != ProtocolBug::kCopyWithoutPin;
  store_ = Store{request, r.blocks[0], pinned};
  if (pinned) blocks_->Pin(r.blocks, PinKind::kTier);
}

void HandoffModel::Compute(int request) {
  Request& r = requests_[static_cast<size_t>(request)];
  r.blocks = blocks_->MatchAndPin(kRoot, Prompt(request), 16);
  if (r.blocks.empty()) {
    r.blocks = blocks_->Reserve(1)->Take(PinKind::kSequence);
    memory_[static_cast<size_t>(r.blocks[0].value)].fill(Tag(request));
  }
  Publish(r, request);
}

void HandoffModel::Ask(int request, bool granted) {
  Request& r = requests_[static_cast<size_t>(request)];
  ++r.attempts;
  r.transfer = next_transfer_++;
  r.phase = Phase::kRequested;
  Message m{Message::Kind::kPrefill, request, r.transfer, 0, 0, 0};
  if (granted) m = OpenGrant(request);
  m.kind = Message::Kind::kPrefill;
  r.early = granted;
  to_writer_.push_back(m);
}

void HandoffModel::Grant(int request) {
  Request& r = requests_[static_cast<size_t>(request)];
  r.blocks = blocks_->MatchAndPin(kRoot, Prompt(request), 16);
  if (!r.blocks.empty()) return Publish(r, request);  // it was cached meanwhile
  if (blocks_->Available() == 0) {
    r.phase = Phase::kIdle;
    return;
  }
  to_writer_.push_back(OpenGrant(request));
}

HandoffModel::Message HandoffModel::OpenGrant(int request) {
  Request& r = requests_[static_cast<size_t>(request)];
  r.blocks = blocks_->Reserve(1)->Take(PinKind::kSequence);
  r.epoch = Epoch(next_epoch_++);
  blocks_->BeginLease(r.epoch, r.blocks);
  Lease lease;
  lease.epoch = r.epoch;
  lease.writer.address = "p";
  lease.writer.incarnation = Linked()->incarnation;
  lease.blocks = 1;
  lease.transfer_id = r.transfer;
  leases_.Open(lease);
  r.phase = Phase::kGranted;
  return {Message::Kind::kGrant, request, r.transfer, r.epoch.value, r.blocks[0].value, 0};
}

void HandoffModel::EndLease(Epoch epoch) {
  leases_.Close(epoch);
  blocks_->EndLease(epoch);
}

void HandoffModel::GiveUp(Request& r) {
  blocks_->Unpin(r.blocks, PinKind::kSequence);
  r.blocks.clear();
  Lease* lease = leases_.Find(r.epoch);
  AISP_CHECK(lease != nullptr);
  lease->revoked = true;
  if (config_.bug == ProtocolBug::kLeaseEndsWithItsTime) return EndLease(r.epoch);
  const WriterProcess* up = Linked();
  if (up != nullptr && up->incarnation == lease->writer.incarnation)
    to_writer_.push_back({Message::Kind::kRevoke, 0, 0, r.epoch.value, 0, 0});
}

void HandoffModel::DropRequest(int request) {
  Request& r = requests_[static_cast<size_t>(request)];
  if (r.phase == Phase::kGranted) GiveUp(r);
  if (r.phase == Phase::kRunning) blocks_->Unpin(r.blocks, PinKind::kSequence);
  r.blocks.clear();
  r.phase = Phase::kGone;
}

void HandoffModel::LoseLink() {
  to_writer_.clear();
  to_reader_.clear();
  notes_.clear();
  for (Request& r : requests_) {
    if (r.phase == Phase::kGranted) GiveUp(r);
    if (r.phase == Phase::kGranted || r.phase == Phase::kRequested) r.phase = Phase::kIdle;
  }
  to_writer_.clear();  // messages of a lost link
  if (config_.bug != ProtocolBug::kLostLinkIsDeath) return;
  for (const Epoch epoch : leases_.Revoked()) EndLease(epoch);
}

void HandoffModel::OnReader(const Message& m) {
  const auto by_transfer = [&](uint64_t transfer) -> Request* {
    for (Request& r : requests_) {
      const bool under_way = r.phase == Phase::kRequested || r.phase == Phase::kGranted;
      if (under_way && r.transfer == transfer) return &r;
    }
    return nullptr;
  };
  Request* r = by_transfer(m.transfer);
  if (m.kind == Message::Kind::kNeed) {
    if (r != nullptr && r->phase == Phase::kRequested) Grant(m.request);
    return;
  }
  if (m.kind == Message::Kind::kDone) {
    if (r == nullptr || r->phase != Phase::kGranted) return;
    const bool epoch = m.epoch == r->epoch.value;
    const bool count = m.layers == kLayers || config_.bug == ProtocolBug::kDoneUncounted;
    if (!epoch || !count) {
      GiveUp(*r);
      r->phase = Phase::kIdle;
      return;
    }
    EndLease(r->epoch);
    return Publish(*r, m.request);
  }
  Lease* lease = leases_.Find(Epoch(m.epoch));
  const WriterProcess* up = Linked();
  if (lease == nullptr || up == nullptr) return;
  if (lease->writer.incarnation != up->incarnation &&
      config_.bug != ProtocolBug::kAnyoneAcknowledges)
    return;
  for (Request& each : requests_) {
    if (each.phase != Phase::kGranted || each.epoch.value != m.epoch) continue;
    blocks_->Unpin(each.blocks, PinKind::kSequence);
    each.blocks.clear();
    each.phase = std::exchange(each.early, false) ? Phase::kRequested : Phase::kIdle;
  }
  EndLease(Epoch(m.epoch));
}

// ---- The prefill role (kv_pusher.cc) ----

void HandoffModel::OnWriter(const Message& m, bool busy) {
  WriterProcess& p = *Linked();
  const bool granted = m.kind == Message::Kind::kGrant || m.kind == Message::Kind::kPrefill;
  if (granted && m.epoch != 0 && (!busy || config_.bug == ProtocolBug::kGivenBackInUse))
    p.jobs.push_back({pool_, m.epoch, m.request, m.transfer, m.block});
  if (busy) to_reader_.push_back({Message::Kind::kFence, 0, 0, m.epoch, 0, 0});
  if (m.kind == Message::Kind::kPrefill && (m.epoch == 0 || busy))
    to_reader_.push_back({Message::Kind::kNeed, m.request, m.transfer, 0, 0, 0});
  if (granted) return;
  for (WriteJob& job : p.jobs) {
    if (job.pool != pool_ || job.epoch != m.epoch || job.told) continue;
    job.stopped = true;
    return MaybeTell(p, job);
  }
  // Nothing was written, or all of it has landed.
  to_reader_.push_back({Message::Kind::kFence, 0, 0, m.epoch, 0, 0});
}

// Sends "done" after the last write has landed, and the acknowledgement of a revoked grant after
// the write in flight.
void HandoffModel::MaybeTell(WriterProcess& p, WriteJob& job) {
  if (job.told) return;
  const bool idle = !job.writing || config_.bug == ProtocolBug::kAckBeforeWrite;
  const bool done =
      job.landed == kLayers || (config_.bug == ProtocolBug::kDoneUncounted && job.landed > 0);
  if (!(job.stopped ? idle : done)) return;
  job.told = true;
  if (!p.linked || !link_) return;
  // The reader that granted it is gone; its successor counts its own epochs.
  if (job.pool != pool_ && config_.bug != ProtocolBug::kAckToSuccessor) return;
  if (job.stopped) {
    to_reader_.push_back({Message::Kind::kFence, 0, 0, job.epoch, 0, 0});
  } else {
    const Message told{Message::Kind::kDone, job.request, job.transfer, job.epoch, 0, job.landed};
    if (config_.notes) notes_.push_back(told);
    to_reader_.push_back(told);
  }
}

bool HandoffModel::MayWrite(const WriterProcess& p, const WriteJob& job) const {
  if (job.writing || job.landed == kLayers) return false;
  if (!config_.converts) return true;
  const int needed = 2 * job.landed + (config_.bug == ProtocolBug::kHalfConverted ? 1 : 2);
  const bool staging_used = std::ranges::any_of(p.jobs, &WriteJob::writing);
  return job.halves >= needed && (!staging_used || config_.bug == ProtocolBug::kStagingReused);
}

void HandoffModel::StartWrite(WriterProcess& p, WriteJob& job) const {
  job.writing = true;
  const bool whole = job.halves >= 2 * (job.landed + 1);
  if (config_.converts) p.staging = whole ? Tag(job.request) : kNothing;
}

void HandoffModel::Land(WriterProcess& p, WriteJob& job) {
  job.writing = false;
  const int layer = job.landed++;
  if (job.pool == pool_) {  // else it is the memory of a dead process
    const Lease* lease = leases_.Find(Epoch(job.epoch));
    if (lease == nullptr || lease->writer.incarnation != p.incarnation)
      Fail("a write landed in a block that was not granted to its writer any more");
    memory_[static_cast<size_t>(job.block)][static_cast<size_t>(layer)] =
        config_.converts ? p.staging : Tag(job.request);
  }
  MaybeTell(p, job);
}

// ---- Events ----

// Events of a request.
bool HandoffModel::DoRequest(const Event& event) {
  const auto at = static_cast<size_t>(event.which);
  switch (event.kind) {
    case Kind::kAsk:
    case Kind::kAskGranted:
      Ask(event.which, event.kind == Kind::kAskGranted);
      break;
    case Kind::kCancel:
      DropRequest(event.which);
      break;
    case Kind::kFinish:
      DropRequest(event.which);
      if (requests_[at].rounds++ == 0) requests_[at].phase = Phase::kIdle;
      break;
    case Kind::kExpire:
      GiveUp(requests_[at]);
      requests_[at].phase = Phase::kIdle;
      break;
    case Kind::kLocal:
      Compute(event.which);
      break;
    case Kind::kLoad: {
      auto reserved = blocks_->Reserve(1)->Take(PinKind::kTier);
      load_ = Load{event.which, reserved[0]};
      requests_[at].promoting = true;
      memory_[static_cast<size_t>(reserved[0].value)].fill(kNothing);
      if (config_.bug == ProtocolBug::kPromotionUnfinished)
        blocks_->Publish(kRoot, Prompt(event.which), reserved, 0);
      break;
    }
    case Kind::kLoaded: {
      memory_[static_cast<size_t>(load_->block.value)].fill(Tag(load_->request));
      if (config_.bug != ProtocolBug::kPromotionUnfinished)
        blocks_->Publish(kRoot, Prompt(load_->request), {&load_->block, 1}, 0);
      blocks_->Unpin({&load_->block, 1}, PinKind::kTier);
      requests_[static_cast<size_t>(load_->request)].promoting = false;
      load_.reset();
      break;
    }
    default:
      return false;
  }
  return true;
}

// Messages, writes and the link.
bool HandoffModel::DoWire(const Event& event) {
  switch (event.kind) {
    case Kind::kToWriter:
    case Kind::kToBusyWriter: {
      const Message m = to_writer_.front();
      to_writer_.pop_front();
      OnWriter(m, event.kind == Kind::kToBusyWriter);
      break;
    }
    case Kind::kToReader: {
      const Message m = to_reader_.front();
      to_reader_.pop_front();
      OnReader(m);
      break;
    }
    case Kind::kNote: {
      const Message m = notes_.front();
      notes_.pop_front();
      OnReader(m);
      break;
    }
    case Kind::kHalf:
    case Kind::kWrite:
    case Kind::kLand: {
      int job = 0;
      for (WriterProcess& p : writers_) {
        for (WriteJob& j : p.jobs) {
          if (job++ != event.which) continue;
          if (event.kind == Kind::kHalf) ++j.halves;
          if (event.kind == Kind::kWrite) StartWrite(p, j);
          if (event.kind == Kind::kLand) Land(p, j);
        }
      }
      break;
    }
    case Kind::kBreak:
      ++link_breaks_;
      link_ = false;
      LoseLink();
      break;
    case Kind::kConnect: {
      link_ = true;
      // Asks again for what the process behind the link still owes.
      const WriterProcess* up = Linked();
      for (const Epoch epoch : leases_.Revoked()) {
        if (up == nullptr) break;
        const bool its = leases_.Find(epoch)->writer.incarnation == up->incarnation;
        if (its || config_.bug == ProtocolBug::kAnyoneAcknowledges)
          to_writer_.push_back({Message::Kind::kRevoke, 0, 0, epoch.value, 0, 0});
      }
      break;
    }
    default:
      return false;
  }
  return true;
}

void HandoffModel::Do(const Event& event) {
  AISP_CHECK(DoRequest(event) || DoWire(event) || DoEnd(event));
  blocks_->CheckInvariants();
  CheckContent();
}

}  // namespace aisp
