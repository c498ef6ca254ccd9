// The metrics that only a decode worker has.
#include "decode/decode_role_impl.h"
#include "speculation/speculator.h"

namespace aisp {

void DecodeRole::Impl::AddSpeculationMetrics(Metrics& m, const MetricLabels& labels) {
  const Speculator* const speculator = deps.engine->speculator();
  if (speculator == nullptr || !speculator->has_proposer()) return;
  speculation = SpeculationMetrics(m, labels);
  if (speculator->feature_size() == 0) return;
  const auto features = [&](const char* outcome) {
    return m.AddCounter("aisp_spec_decode_prompt_features_total",
                        "Remote prompts whose features a proposer wanted, by what became of that",
                        WithLabel(labels, "outcome", outcome));
  };
  features_came = features("came");
  features_absent = features("absent");
  features_refused = features("refused");
}

void DecodeRole::Impl::AddMetrics(Metrics& m) {
  const MetricLabels labels = WorkerLabels(v1::ROLE_DECODE, options.worker.worker_id);
  remote_filled = m.AddCounter("aisp_remote_prefills_total",
                               "Prompts whose KV a prefill worker delivered", labels);
  first_drawn =
      m.AddCounter("aisp_first_tokens_from_prefill_total",
                   "First tokens that came with the KV, drawn by a prefill worker", labels);
  remote_failed = m.AddCounter("aisp_remote_prefill_failures_total",
                               "Attempts at a remote prefill that failed", labels);
  local_fallbacks =
      m.AddCounter("aisp_remote_prefill_fallbacks_total",
                   "Prompts that ran here because no prefill worker delivered", labels);
  grants = m.AddCounter("aisp_kv_grants_total", "Grants of KV blocks to prefill workers", labels);
  grants_refused = m.AddCounter("aisp_kv_grants_refused_total",
                                "Refusals to grant KV blocks, retries included", labels);
  data_loss = m.AddCounter(
      "aisp_kv_data_loss_total",
      "Transfers refused because epoch, token count or the check of a block were wrong", labels);
  notes_taken = m.AddCounter("aisp_kv_notes_total", "Hand-offs that ended by a note", labels);
  verified = m.AddCounter("aisp_kv_verified_blocks_total",
                          "Blocks that came over a lane and were what had been written", labels);
  corrupt = m.AddCounter("aisp_kv_corrupt_transfers_total",
                         "Transfers of which a block was not what had been written", labels);
  puller->AddMetrics(m, labels);
  AddSpeculationMetrics(m, labels);
  forced_proposed = m.AddCounter("aisp_forced_tokens_proposed_total",
                                 "Tokens verified because a constraint left one text", labels);
  forced_accepted = m.AddCounter("aisp_forced_tokens_total",
                                 "Tokens of forced runs that were the ones drawn", labels);
  const auto repeated = [&](const char* state) {
    return m.AddCounter("aisp_answers_repeated_total",
                        "Answers said again from what is kept under an idempotency-key, by how far "
                        "they were",
                        WithLabel(labels, "state", state));
  };
  repeated_ended = repeated("ended");
  repeated_running = repeated("running");
  repeated_resumed = repeated("resumed");
  repeats_refused = m.AddCounter("aisp_answer_keys_refused_total",
                                 "Requests under the idempotency-key of another request", labels);
  answers_dropped = m.AddCounter("aisp_answers_dropped_total",
                                 "Kept answers dropped before their time for want of room", labels);
  answers_kept = m.AddGauge("aisp_answers_kept", "Answers kept under an idempotency-key", labels);
  answer_bytes = m.AddGauge("aisp_answers_kept_bytes", "Bytes of those answers", labels);
  tokens_out = m.AddCounter("aisp_tokens_generated_total", "Tokens drawn for requests", labels);
  finished = m.AddCounter("aisp_decode_requests_finished_total",
                          "Requests that ended with a finish event", labels);
  const auto part = [&](const char* name) {
    return m.AddHistogram("aisp_worker_ttft_part_seconds",
                          "Time to first token on the decode worker, by part; the parts add up",
                          LatencyBuckets(), WithLabel(labels, "part", name));
  };
  ttft_queue = part("queue");
  ttft_prefill = part("prefill");
  ttft_transfer = part("transfer");
  ttft_first_decode = part("first_decode");
  kv_transfer = m.AddHistogram("aisp_kv_transfer_seconds",
                               "From the first write of a prompt's KV to the last, hidden or not",
                               LatencyBuckets(), labels);
}

}  // namespace aisp
