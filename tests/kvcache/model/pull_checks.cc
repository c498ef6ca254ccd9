// The invariants of every state of a PullModel, its digest, and names.
#include <algorithm>
#include <sstream>

#include "tests/kvcache/model/pull_model.h"

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
                                {Kind::kNote, "note"},
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
    case PullBug::kPartOfABlock:
      return "a part of a block counts as whole";
    case PullBug::kStagingReused:
      return "converted into memory that is in use";
  }
  return "";
}

std::string PullModel::ToString(const Event& event) {
  for (const EventName& each : kNames) {
    if (each.kind == event.kind) return each.name + (" " + std::to_string(event.which));
  }
  return "?";
}

void PullModel::CheckContent() {
  const auto check = [&](BlockManager& blocks, std::vector<uint64_t>& memory, int units,
                         const char* whose) {
    blocks.CheckInvariants();
    const auto found = Match(blocks);
    blocks.Unpin(found, PinKind::kSequence);
    int unit = 0;
    for (const BlockId block : found) {
      for (const uint64_t word : Words(memory, block, units)) {
        if (word != Word(unit++))
          Fail(std::string(whose) + " finds KV under the prefix that is not the prefix's");
      }
    }
  };
  check(*holder_, memory_, config_.holder_units, "the holder");
  for (Puller& p : pullers_) check(*p.blocks, p.memory, config_.puller_units, "a puller");
}

std::string PullModel::Digest() const {
  std::ostringstream out;
  const auto pool = [&](const BlockManager& blocks, const std::vector<uint64_t>& memory) {
    const BlockStats stats = blocks.Stats();
    out << stats.free << ',' << stats.cached << ',' << stats.quarantined << ','
        << blocks.MatchLength(kRoot, Prefix(), Units() * 16);
    for (const uint64_t word : memory) out << '/' << word;
  };
  out << evictions_ << link_breaks_ << holder_ends_ << puller_ends_ << tier_faults_;
  if (promotion_) {
    out << 'U' << promotion_->matched << promotion_->loaded;
    for (const BlockId block : promotion_->blocks) out << ' ' << block.value;
  }
  pool(*holder_, memory_);
  out << 'S' << staging_taken_;
  for (const uint64_t word : staging_) out << '/' << word;
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
    for (const auto* queue : {&p.to_holder, &p.to_puller, &p.notes}) {
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
             e.kind == Kind::kNote || e.kind == Kind::kLand || e.kind == Kind::kConnect ||
             e.kind == Kind::kDeathProven || e.kind == Kind::kLoad;
    });
    if (next == events.end()) break;
    Do(*next);
  }
  if (holder_->Stats().pinned > 0 || !pushes_.empty() || staging_taken_)
    Fail("the holder's blocks do not come back");
  for (const Puller& p : pullers_) {
    if (p.blocks->Stats().pinned > 0 || p.leases.size() > 0)
      Fail("a puller's blocks do not come back");
  }
}

}  // namespace aisp
