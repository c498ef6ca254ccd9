// The ends of processes in the model, the invariants of every state, and the exploration of all
// states.
#include <algorithm>
#include <sstream>

#include "common/check.h"
#include "tests/kvcache/model/handoff_model.h"

namespace aisp {
namespace {

using Kind = HandoffModel::Event::Kind;

}  // namespace

// Ends processes, which are restarted, and the copy to host memory.
bool HandoffModel::DoEnd(const Event& event) {
  const auto at = static_cast<size_t>(event.which);
  switch (event.kind) {
    case Kind::kWriterDies:
      if (event.which > 0) {  // a replaced one
        writers_[at - 1].alive = false;
        writers_[at - 1].jobs.clear();
        break;
      }
      [[fallthrough]];
    case Kind::kWriterReplaced: {
      ++writer_ends_;
      for (WriterProcess& p : writers_) {
        if (!p.linked) continue;
        p.linked = false;
        if (event.kind == Kind::kWriterDies) {
          p.alive = false;
          p.jobs.clear();
        }
      }
      link_ = false;
      LoseLink();
      writers_.push_back({next_incarnation_++, true, true, {}});
      break;
    }
    case Kind::kDeathProven:
      for (const Epoch epoch : leases_.Revoked()) {
        if (leases_.Find(epoch)->writer.incarnation == writers_[at].incarnation) EndLease(epoch);
      }
      break;
    case Kind::kReaderDies:
      ++reader_ends_;
      LoseLink();
      for (Request& r : requests_) r = {};
      StartReader();
      for (WriterProcess& p : writers_) {
        if (!p.linked) continue;
        // Grants of a lost link are stopped; what lands is in the old process's memory.
        for (WriteJob& job : p.jobs) job.stopped = true;
      }
      link_ = false;
      break;
    case Kind::kStored: {
      const auto& content = memory_[static_cast<size_t>(store_->block.value)];
      for (const uint64_t word : content) {
        if (word != Tag(store_->request)) Fail("host memory has another prompt's KV");
      }
      host_ = {store_->request, content[0]};
      if (store_->pinned) blocks_->Unpin({&store_->block, 1}, PinKind::kTier);
      store_.reset();
      break;
    }
    default:
      return false;
  }
  return true;
}

// Every reader of a block finds the content that it expects.
void HandoffModel::CheckContent() {
  for (int i = 0; i < config_.requests; ++i) {
    const Request& r = requests_[static_cast<size_t>(i)];
    std::vector<BlockId> read = r.phase == Phase::kRunning ? r.blocks : std::vector<BlockId>();
    const std::vector<BlockId> found = blocks_->MatchAndPin(kRoot, Prompt(i), 16);
    blocks_->Unpin(found, PinKind::kSequence);
    read.insert(read.end(), found.begin(), found.end());
    for (const BlockId block : read) {
      for (const uint64_t word : memory_[static_cast<size_t>(block.value)]) {
        if (word != Tag(i)) Fail("a request reads KV that is not its prompt's");
      }
    }
  }
}

std::string HandoffModel::Digest() const {
  std::ostringstream out;
  const BlockStats stats = blocks_->Stats();
  out << stats.free << ',' << stats.cached << ',' << stats.quarantined << ',' << pool_ << ';';
  for (const auto& block : memory_) out << block[0] << '/' << block[1] << ' ';
  for (int i = 0; i < config_.requests; ++i) {
    const Request& r = requests_[static_cast<size_t>(i)];
    out << '|' << static_cast<int>(r.phase) << ',' << r.attempts << ',' << r.rounds << ','
        << r.transfer << ',' << r.epoch.value << ',' << r.promoting << r.early << ','
        << (r.blocks.empty() ? -1 : r.blocks[0].value) << ','
        << blocks_->MatchLength(kRoot, Prompt(i), 16);
  }
  for (uint64_t epoch = 1; epoch < next_epoch_; ++epoch) {
    const Lease* lease = const_cast<LeaseBook&>(leases_).Find(Epoch(epoch));
    if (lease != nullptr) out << 'L' << epoch << lease->revoked << lease->writer.incarnation;
  }
  for (const WriterProcess& p : writers_) {
    out << 'W' << p.incarnation << p.alive << p.linked << p.staging << ' ';
    for (const WriteJob& j : p.jobs)
      out << '(' << j.pool << ',' << j.epoch << ',' << j.block << ',' << j.landed << j.halves
          << j.writing << j.stopped << j.told << ')';
  }
  for (const auto* queue : {&to_writer_, &to_reader_, &notes_}) {
    out << 'Q';
    for (const Message& m : *queue)
      out << static_cast<int>(m.kind) << m.request << ',' << m.transfer << ',' << m.epoch << ','
          << m.block << ',' << m.layers << ' ';
  }
  out << link_ << writer_ends_ << reader_ends_ << link_breaks_ << next_epoch_ << ','
      << next_transfer_;
  if (store_) out << 'S' << store_->request << ',' << store_->block.value;
  if (load_) out << 'D' << load_->request << ',' << load_->block.value;
  if (host_) out << 'H' << host_->first;
  return out.str();
}

void HandoffModel::Quiesce() {
  for (int turn = 0; turn < 200 && violation_.empty(); ++turn) {
    const std::vector<Event> events = Possible();
    const auto next = std::ranges::find_if(events, [&](const Event& e) {
      switch (e.kind) {
        case Kind::kCancel:
        case Kind::kToWriter:
        case Kind::kToReader:
        case Kind::kNote:
        case Kind::kLand:
        case Kind::kConnect:
        case Kind::kDeathProven:
        case Kind::kStored:
        case Kind::kLoaded:
          return true;
        case Kind::kWriterDies:
          return e.which > 0;
        default:
          return false;
      }
    });
    if (next == events.end()) break;
    Do(*next);
  }
  const BlockStats stats = blocks_->Stats();
  if (stats.pinned > 0 || leases_.size() > 0) Fail("blocks do not come back");
}

Exploration Explore(const HandoffConfig& config, uint64_t max_states) {
  return ExploreModel<HandoffModel>(config, max_states);
}

}  // namespace aisp
