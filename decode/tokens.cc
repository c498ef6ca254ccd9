// Sends outputs of sequences to the routers that receive them.
#include <algorithm>

#include "common/log.h"
#include "decode/codec.h"
#include "decode/decode_role_impl.h"
#include "decode/ttft.h"

namespace aisp {

namespace {

std::string_view FinishName(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kError:
      return "error";
    default:
      return "none";
  }
}

}  // namespace

uint32_t DecodeRole::Impl::QueuedPrompts() const {
  return static_cast<uint32_t>(
      std::count_if(requests.begin(), requests.end(), [](const auto& each) {
        const DecodeRequest& request = each.second;
        return request.phase == RequestPhase::kRunning && !request.filled &&
               !request.first_token_sent;
      }));
}

void DecodeRole::Impl::SetTiming(DecodeRequest& request, v1::TokenEvent* event) {
  const SequenceTimes times = deps.engine->Times(request.sequence);
  v1::Timing timing = request.filled ? RemoteTiming(request.received, times, request.remote)
                                     : LocalTiming(request.received, times);
  timing.set_fallback(request.fallback);
  if (request.pulled.result != v1::PrefixPull::NONE) {
    AddPull(request.pulled, &timing);
  } else if (request.filled && request.remote.pull.result() != v1::PrefixPull::NONE) {
    *timing.mutable_pull() = request.remote.pull;
  }
  AppendSpans(request.received, times, request.filled ? &request.remote : nullptr, request.failed,
              options.worker.worker_id, &timing);
  AppendPullSpan(request.received, request.pulled, &timing);
  ttft_queue.Observe(ToSeconds(Duration(timing.queue_ns())));
  ttft_prefill.Observe(ToSeconds(Duration(timing.prefill_ns())));
  ttft_transfer.Observe(ToSeconds(Duration(timing.transfer_ns())));
  if (request.filled) kv_transfer.Observe(ToSeconds(Duration(timing.transfer_total_ns())));
  ttft_first_decode.Observe(ToSeconds(Duration(timing.first_decode_ns())));
  *event->mutable_timing() = std::move(timing);
  request.first_token_sent = true;
}

void DecodeRole::Impl::Collect() {
  const CollectOutput out = deps.engine->Collect();
  speculation.Record(out, deps.engine->speculator());
  for (const VerifiedDraft& draft : out.drafts) {
    forced_proposed.Add(draft.forced);
    forced_accepted.Add(draft.forced_accepted);
  }
  // A client may send the next turn as soon as its answer ends, so routers must know the blocks by
  // then. Tokens of running answers do not wait.
  const auto ends = [](const TokenOutput& output) { return output.finish != FinishReason::kNone; };
  if (std::ranges::any_of(out.tokens, ends)) shell->PublishKvEvents();
  Deliver(out.tokens);
  shell->RecordStep(out.timing);
  shell->PublishKvEvents();
  NoteDrained();
}

void DecodeRole::Impl::Deliver(std::span<const TokenOutput> outputs) {
  Messages messages;
  // Outputs of one sequence are adjacent.
  for (size_t begin = 0, end = 0; begin < outputs.size(); begin = end) {
    while (end < outputs.size() && outputs[end].sequence == outputs[begin].sequence) ++end;
    DeliverOne(outputs.subspan(begin, end - begin), &messages);
  }
  // Once a token was sent, any router must be able to find its answer.
  ReportKept();
  for (auto& [link, message] : messages) shell->Send(link, std::move(message));
}

void DecodeRole::Impl::DeliverOne(std::span<const TokenOutput> outputs, Messages* messages) {
  const auto it = by_sequence.find(outputs.front().sequence);
  if (it == by_sequence.end()) return;
  DecodeRequest& request = requests.at(it->second);
  v1::TokenEvent event;
  for (const TokenOutput& output : outputs) {
    AppendOutput(output, &event);
    if (output.token >= 0) {
      tokens_out.Add();
      event.set_preemptions(static_cast<uint32_t>(output.preemptions) + request.remote.preemptions);
      if (output.drafts.steps > 0) DraftsToWire(output.drafts, event.mutable_drafts());
    }
    const bool answers_now = output.token >= 0 || !output.embedding.empty();
    if (answers_now && !request.first_token_sent) SetTiming(request, &event);
  }
  if (request.kept) answers.Append(*request.kept, request.key, event);
  for (const auto& [router, id] : request.readers) {
    event.set_request_id(id);
    *(*messages)[router].mutable_tokens()->add_events() = event;
  }
  const TokenOutput& last = outputs.back();
  if (last.finish == FinishReason::kNone) return;
  finished.Add();
  LogInfo("request done",
          {{"request", request.trace_id},
           {"tokens", last.position + 1},
           {"finish", FinishName(last.finish)},
           {"error", last.error.message},
           {"fault", last.finish == FinishReason::kError ? FaultName(last.fault) : ""},
           {"remote_kv", request.filled},
           {"ms", ToMs(deps.clock->Now() - request.received)}});
  EndAttempt(request);  // a timeout may occur while a prefill worker still writes
  Erase(request);
}

}  // namespace aisp
