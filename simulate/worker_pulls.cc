// Pulls of prefixes by a simulated worker, as in PrefixPuller (decode/prefix_puller.h). The holder
// computes nothing and sends one prefix after the other.
#include <algorithm>

#include "simulate/worker.h"

namespace aisp::simulate {

// Cached tokens of its prompt, in whole blocks; the last token is always computed.
size_t Worker::HeldTokens(const Sequence& sequence) const {
  const size_t blocks = PromptBlocks(std::min(sequence.prompt, sequence.length() - 1));
  return cache_.Match(BlockNames(sequence.units, blocks)) * static_cast<size_t>(block_);
}

bool Worker::StartPull(Sequence& sequence) {
  Worker* const holder = std::exchange(sequence.pull_from, nullptr);
  if (holder == nullptr) return false;
  sequence.pull.set_holder(holder->id());
  const auto each = static_cast<size_t>(block_);
  const size_t own = HeldTokens(sequence);
  const size_t wanted =
      std::min(holder->HeldTokens(sequence), static_cast<size_t>(sequence.pull_tokens));
  const size_t held = wanted / each * each;
  if (held <= own) {
    sequence.pull.set_result(wanted == 0 ? v1::PrefixPull::MISSED : v1::PrefixPull::CACHED);
    return false;
  }
  const double bytes = static_cast<double>(held - own) * profile_.kv_bytes_per_token;
  const Instant now = world_->Now();
  const Duration message = FromMs(profile_.message_ms);
  holder->link_free_ = std::max(now + message, holder->link_free_) +
                       FromMs(bytes / profile_.transfer_bytes_per_s * 1e3);
  const Instant at = holder->link_free_ + message + FromMs(profile_.handoff_ms);
  sequence.pull.set_tokens(static_cast<uint32_t>(held));
  sequence.pull.set_bytes(static_cast<uint64_t>(bytes));
  sequence.pull.set_duration_ns((at - now).count());
  world_->PulledAt(*this, *sequence.decode, sequence.wire_id, at);
  return true;
}

void Worker::OnPulled(Worker& decode, uint64_t wire_id) {
  Sequence* const sequence = decode.Find(wire_id);
  if (sequence == nullptr) return;
  sequence->pull.set_result(KeepPulled(*sequence) ? v1::PrefixPull::FILLED
                                                  : v1::PrefixPull::REFUSED);
  SendKvEvents();
  if (&decode != this) return OnJob(decode, wire_id);
  Enqueue(*sequence);
  Plan();
  NoteLoad();
}

// Caches the pulled blocks, not yet in use; false if there is no room.
bool Worker::KeepPulled(const Sequence& sequence) {
  const size_t own = HeldTokens(sequence) / static_cast<size_t>(block_);
  const size_t all = sequence.pull.tokens() / static_cast<size_t>(block_);
  if (all <= own) return true;
  const std::vector<Hash128> names = BlockNames(sequence.units, all);
  cache_.Use({names.data(), own});
  const bool room = cache_.Take(static_cast<int64_t>(all - own));
  for (size_t block = own; room && block < all; ++block) {
    const auto units = UnitsOfBlock(sequence.units, block);
    if (cache_.Publish(units)) stored_.insert(stored_.end(), units.begin(), units.end());
  }
  cache_.Release({names.data(), room ? all : own});
  return room;
}

}  // namespace aisp::simulate
