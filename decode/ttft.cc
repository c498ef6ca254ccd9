#include "decode/ttft.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// Takes up to `wanted` of the remaining time.
int64_t Take(int64_t wanted, int64_t* left) {
  const int64_t taken = std::clamp<int64_t>(wanted, 0, *left);
  *left -= taken;
  return taken;
}

int64_t Since(Instant from, Instant to) {
  return from == kNever || to == kNever ? 0 : (to - from).count();
}

int64_t Whole(Instant received, const SequenceTimes& times) {
  return std::max<int64_t>(0, Since(received, times.first_token));
}

void AddPart(std::string_view name, int64_t duration_ns, const std::string& worker, int64_t* at_ns,
             TraceSpans* out) {
  if (duration_ns <= 0) return;
  v1::TraceSpan* span = out->Add();
  span->set_name(std::string(name));
  span->set_start_ns(std::exchange(*at_ns, *at_ns + duration_ns));
  span->set_duration_ns(duration_ns);
  span->set_worker(worker);
}

}  // namespace

v1::Timing LocalTiming(Instant received, const SequenceTimes& times) {
  v1::Timing timing;
  int64_t left = Whole(received, times);
  timing.set_queue_ns(Take(Since(received, times.first_scheduled), &left));
  timing.set_prefill_ns(Take(Since(times.first_scheduled, times.prefill_done), &left));
  timing.set_first_decode_ns(left);
  timing.set_cached_tokens(static_cast<uint32_t>(std::max(0, times.cached_tokens)));
  timing.set_preemptions(static_cast<uint32_t>(times.preemptions));
  return timing;
}

v1::Timing RemoteTiming(Instant received, const SequenceTimes& times, const RemotePrefill& remote) {
  v1::Timing timing;
  int64_t left = Whole(received, times);
  const Instant filled = remote.drawn ? times.first_token : remote.filled;
  int64_t before_filled = Take(Since(received, filled), &left);
  // Clocks of two hosts differ, so only the sum of both messages is known: the request's half is
  // queueing, the other half is how long this worker did not know of KV that had arrived.
  const Duration known = remote.queue + remote.prefill + remote.tail;
  const int64_t messages = std::max<int64_t>(0, Since(remote.asked, filled) - known.count());
  timing.set_queue_ns(
      Take(Since(received, remote.asked) + remote.queue.count() + messages / 2, &before_filled));
  timing.set_prefill_ns(Take(remote.prefill.count(), &before_filled));
  timing.set_transfer_ns(before_filled);
  const int64_t since_asked = std::max<int64_t>(0, Since(remote.asked, filled));
  timing.set_transfer_total_ns(
      std::max(before_filled, std::clamp<int64_t>(remote.moving.count(), 0, since_asked)));
  timing.set_first_decode_ns(left);
  timing.set_cached_tokens(remote.cached_tokens);
  timing.set_kv_blocks_moved(remote.blocks);
  timing.set_kv_transport(remote.transport);
  timing.set_preemptions(static_cast<uint32_t>(times.preemptions) + remote.preemptions);
  timing.set_prefill_worker(remote.worker);
  return timing;
}

v1::PrefixPull PullToWire(const PullOutcome& pulled) {
  v1::PrefixPull pull;
  pull.set_result(pulled.result);
  pull.set_holder(pulled.holder);
  pull.set_tokens(static_cast<uint32_t>(pulled.tokens));
  pull.set_bytes(pulled.bytes);
  pull.set_duration_ns(pulled.moving.count());
  pull.set_promotion_ns(pulled.promoting.count());
  pull.set_transport(pulled.transport);
  return pull;
}

void AddPull(const PullOutcome& pulled, v1::Timing* timing) {
  *timing->mutable_pull() = PullToWire(pulled);
  if (!timing->prefill_worker().empty()) return;
  const int64_t waited =
      std::clamp<int64_t>(Since(pulled.began, pulled.ended), 0, timing->queue_ns());
  timing->set_queue_ns(timing->queue_ns() - waited);
  timing->set_transfer_ns(timing->transfer_ns() + waited);
  if (timing->kv_transport().empty()) timing->set_kv_transport(pulled.transport);
}

void AppendPullSpan(Instant received, const PullOutcome& pulled, v1::Timing* timing) {
  if (pulled.result == v1::PrefixPull::NONE) return;
  v1::TraceSpan* span =
      AddSpan("pull", received, pulled.began, pulled.ended, pulled.holder, timing->mutable_spans());
  if (span == nullptr) return;
  span->set_tokens(static_cast<uint32_t>(pulled.tokens));
  span->set_note(pulled.why.empty() ? pulled.transport : pulled.why);
}

void AppendSpans(Instant received, const SequenceTimes& times, const RemotePrefill* remote,
                 const std::vector<FailedAttempt>& failed, const std::string& worker,
                 v1::Timing* timing) {
  TraceSpans* out = timing->mutable_spans();
  for (const FailedAttempt& attempt : failed) {
    v1::TraceSpan* span =
        AddSpan("attempt", received, attempt.began, attempt.failed, attempt.address, out);
    if (span != nullptr) span->set_note(attempt.why);
  }
  const std::string& computed_by = remote != nullptr ? remote->worker : worker;
  int64_t at_ns = 0;
  const auto transfer = [&] {
    AddPart("transfer", timing->transfer_ns(), worker, &at_ns, out);
    if (timing->transfer_ns() > 0) out->rbegin()->set_note(timing->kv_transport());
  };
  // A pulled prefix comes before the prefill; a prefill worker's KV after it.
  const bool pulled = remote == nullptr;
  if (pulled) transfer();
  AddPart("queue", timing->queue_ns(), worker, &at_ns, out);
  AddPart("prefill", timing->prefill_ns(), computed_by, &at_ns, out);
  if (!pulled) transfer();
  AddPart("first decode", timing->first_decode_ns(), worker, &at_ns, out);
  if (remote == nullptr) return AddChunks(received, times, worker, out);
  for (v1::TraceSpan span : remote->its_spans) {
    span.set_start_ns(span.start_ns() + std::max<int64_t>(0, Since(received, remote->asked)));
    *out->Add() = std::move(span);
  }
}

}  // namespace aisp
