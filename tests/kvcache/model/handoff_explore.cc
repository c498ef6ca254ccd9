// What must hold in every state of the model, and the walk through all of them.
#include <algorithm>
#include <sstream>

#include "common/check.h"
#include "tests/kvcache/model/handoff_model.h"

namespace aisp {
namespace {

using Kind = HandoffModel::Event::Kind;

}  // namespace

// Whoever reads a block finds what it is meant to hold.
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
        << r.transfer << ',' << r.epoch.value << ',' << r.promoting << ','
        << (r.blocks.empty() ? -1 : r.blocks[0].value) << ','
        << blocks_->MatchLength(kRoot, Prompt(i), 16);
  }
  for (uint64_t epoch = 1; epoch < next_epoch_; ++epoch) {
    const Lease* lease = const_cast<LeaseBook&>(leases_).Find(Epoch(epoch));
    if (lease != nullptr) out << 'L' << epoch << lease->revoked << lease->writer.incarnation;
  }
  for (const WriterProcess& p : writers_) {
    out << 'W' << p.incarnation << p.alive << p.linked;
    for (const WriteJob& j : p.jobs)
      out << '(' << j.pool << ',' << j.epoch << ',' << j.block << ',' << j.landed << j.writing
          << j.stopped << j.told << ')';
  }
  for (const auto* queue : {&to_writer_, &to_reader_}) {
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
