// What must hold in every state of a PullModel, and what tells two states apart.
#include <algorithm>
#include <sstream>

#include "tests/kvcache/model/pull_model.h"

namespace aisp {
namespace {

using Kind = PullModel::Event::Kind;

}  // namespace

void PullModel::CheckContent() {
  const auto check = [&](BlockManager& blocks, const std::vector<uint64_t>& memory,
                         const char* whose) {
    blocks.CheckInvariants();
    const auto found = blocks.MatchAndPin(kRoot, Prefix(), config_.prefix_blocks * 16);
    blocks.Unpin(found, PinKind::kSequence);
    for (size_t i = 0; i < found.size(); ++i) {
      if (memory[static_cast<size_t>(found[i].value)] != Word(i))
        Fail(std::string(whose) + " finds KV under the prefix that is not the prefix's");
    }
  };
  check(*holder_, memory_, "the holder");
  for (Puller& p : pullers_) check(*p.blocks, p.memory, "a puller");
}

std::string PullModel::Digest() const {
  std::ostringstream out;
  const auto pool = [&](const BlockManager& blocks, const std::vector<uint64_t>& memory) {
    const BlockStats stats = blocks.Stats();
    out << stats.free << ',' << stats.cached << ',' << stats.quarantined << ','
        << blocks.MatchLength(kRoot, Prefix(), config_.prefix_blocks * 16);
    for (const uint64_t word : memory) out << '/' << word;
  };
  out << evictions_ << link_breaks_ << holder_ends_ << puller_ends_ << tier_faults_;
  if (promotion_) {
    out << 'U' << promotion_->matched << promotion_->loaded;
    for (const BlockId block : promotion_->blocks) out << ' ' << block.value;
  }
  pool(*holder_, memory_);
  for (const Push& push : pushes_) {
    out << 'P' << push.puller << ',' << push.process << ',' << push.pull << ',' << push.epoch << ','
        << push.landed << push.writing << push.stopped << push.told << push.pinned << push.blind
        << push.promoting;
    for (const BlockId block : push.source) out << ' ' << block.value;
    for (const BlockId block : push.target) out << '>' << block.value;
  }
  for (const Puller& p : pullers_) {
    out << '|' << static_cast<int>(p.phase) << p.link << ',' << p.pull << ',' << p.epoch.value
        << ',' << p.held << ',' << p.pulls << p.computes << ',' << p.process << ',' << p.next_epoch
        << ';';
    pool(*p.blocks, p.memory);
    for (const BlockId block : p.granted) out << 'g' << block.value;
    for (uint64_t epoch = 1; epoch < p.next_epoch; ++epoch) {
      const Lease* lease = const_cast<LeaseBook&>(p.leases).Find(Epoch(epoch));
      if (lease != nullptr) out << 'L' << epoch << lease->revoked << lease->writer.incarnation;
    }
    for (const auto* queue : {&p.to_holder, &p.to_puller}) {
      out << 'Q';
      for (const Message& m : *queue)
        out << static_cast<int>(m.kind) << m.pull << ',' << m.epoch << ',' << m.blocks << ' ';
    }
  }
  return out.str();
}

void PullModel::Quiesce() {
  for (int turn = 0; turn < 300 && violation_.empty(); ++turn) {
    const std::vector<Event> events = Possible();
    const auto next = std::ranges::find_if(events, [](const Event& e) {
      return e.kind == Kind::kLate || e.kind == Kind::kToHolder || e.kind == Kind::kToPuller ||
             e.kind == Kind::kLand || e.kind == Kind::kConnect || e.kind == Kind::kDeathProven ||
             e.kind == Kind::kLoad;
    });
    if (next == events.end()) break;
    Do(*next);
  }
  if (holder_->Stats().pinned > 0 || !pushes_.empty()) Fail("the holder's blocks do not come back");
  for (const Puller& p : pullers_) {
    if (p.blocks->Stats().pinned > 0 || p.leases.size() > 0)
      Fail("a puller's blocks do not come back");
  }
}

}  // namespace aisp
