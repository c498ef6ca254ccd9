// The message to a decode worker when all granted blocks were written.
#include <algorithm>

#include "common/log.h"
#include "kvcache/block_check.h"
#include "prefill/prefill_role_impl.h"
#include "worker/feature_codec.h"
#include "worker/sampling_codec.h"
#include "worker/trace_spans.h"

namespace aisp {
namespace {

int64_t NonNegativeNs(Instant from, Instant to) {
  return std::max<int64_t>(0, (to - from).count());
}

}  // namespace

// Computed once everything is written; per layer it would delay each step.
void PrefillRole::Impl::AddBlockChecks(const Transfer& transfer, v1::PrefillDone* done) {
  if (deps.host_pool == nullptr || !readers.Find(transfer.reader)->verify) return;
  const KvLayout& layout = deps.engine->blocks().layout();
  const std::span<const BlockId> local = deps.engine->BlocksOf(transfer.sequence);
  const KvConversion& conversion = readers.Find(transfer.reader)->conversion;
  if (!conversion.whole()) {
    // A sequence that has ended has no blocks any more; then no checks are sent.
    const bool there = static_cast<int32_t>(local.size()) >= layout.BlocksFor(transfer.end_token);
    if (!there) return;
    for (const uint64_t check :
         conversion.Checks(deps.host_pool, local, transfer.first_token, transfer.end_token))
      done->add_block_checks(check);
    return;
  }
  const int32_t end =
      std::min(layout.BlocksFor(transfer.end_token), static_cast<int32_t>(local.size()));
  for (int32_t i = transfer.first_token / layout.block_tokens; i < end; ++i) {
    done->add_block_checks(BlockCheck(layout, deps.host_pool, local[static_cast<size_t>(i)]));
  }
}

// The reader continues as soon as it finds the note; the message over the link takes two wakes
// more.
void PrefillRole::Impl::LeaveNote(ReaderId id, const v1::PrefillToDecode& done) {
  const Reader* reader = readers.Find(id);
  if (reader == nullptr || !reader->up || !reader->pool.transport->capabilities().notes) return;
  reader->pool.transport->Leave(reader->pool.peer, done.SerializeAsString());
}

// Features are optional: they are omitted if the link has no room.
void PrefillRole::Impl::SendDone(ReaderId id, v1::PrefillToDecode message) {
  const Reader* reader = readers.Find(id);
  if (reader == nullptr || !reader->up) return;
  if (const size_t bytes = message.done().features().rows().size(); bytes > 0) {
    if (deps.readers->Offer(reader->link, message))
      return feature_bytes.Add(static_cast<double>(bytes));
    message.mutable_done()->clear_features();
  }
  deps.readers->Send(reader->link, std::move(message));
}

void PrefillRole::Impl::FinishTransfer(Transfer& transfer) {
  const PushTotals& totals = pusher->Totals(transfer.push);
  const Instant started =
      transfer.first_scheduled == kNever ? transfer.granted : transfer.first_scheduled;
  const Instant last_write =
      totals.last_completion == kNever ? transfer.computed_at : totals.last_completion;
  v1::PrefillToDecode message;
  v1::PrefillDone* done = message.mutable_done();
  done->set_transfer_id(transfer.transfer_id);
  done->set_epoch(transfer.epoch.value);
  done->set_token_layers(totals.token_layers);
  done->set_prefill_cached_tokens(static_cast<uint32_t>(transfer.cached_tokens));
  done->set_queue_ns(NonNegativeNs(transfer.received, started));
  done->set_prefill_ns(NonNegativeNs(started, transfer.computed_at));
  if (totals.first_start != kNever)
    done->set_transfer_ns(NonNegativeNs(totals.first_start, last_write));
  done->set_transfer_tail_ns(NonNegativeNs(transfer.computed_at, last_write));
  done->set_bytes(totals.bytes);
  done->set_blocks(totals.blocks);
  AddBlockChecks(transfer, done);
  if (transfer.drawn) {
    DrawnToWire(*transfer.drawn, done->mutable_drawn());
    first_tokens.Add();
  }
  if (const PromptFeatures features = deps.engine->FeaturesOf(transfer.sequence);
      !features.rows.empty())
    FeaturesToWire(features, done->mutable_features());
  if (transfer.fetched.result() != v1::PrefixPull::NONE) {
    *done->mutable_pull() = transfer.fetched;
    AddSpan("pull", transfer.received, transfer.received, transfer.fetch_over,
            transfer.fetched.holder(), done->mutable_spans());
  }
  const SequenceTimes times = deps.engine->Times(transfer.sequence);
  done->set_preemptions(static_cast<uint32_t>(times.preemptions));
  AddChunks(transfer.received, times, options.worker.worker_id, done->mutable_spans());
  LeaveNote(transfer.reader, message);
  SendDone(transfer.reader, std::move(message));
  LogInfo("prefill done", {{"request", transfer.trace_id},
                           {"tokens", transfer.tokens},
                           {"cached_tokens", transfer.cached_tokens},
                           {"blocks", totals.blocks},
                           {"queue_ms", ToMs(started - transfer.received)},
                           {"prefill_ms", ToMs(transfer.computed_at - started)}});
  transfers_done.Add();
  if (transfer.sequence_alive) deps.engine->Release(transfer.sequence);
  EraseTransfer(transfer);
}

}  // namespace aisp
