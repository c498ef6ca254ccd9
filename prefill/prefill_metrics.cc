// The metrics that only a prefill worker has.
#include "prefill/prefill_role_impl.h"

namespace aisp {

void PrefillRole::Impl::AddMetrics(Metrics& m) {
  const MetricLabels labels = WorkerLabels(v1::ROLE_PREFILL, options.worker.worker_id);
  transfers_done = m.AddCounter("aisp_prefill_transfers_done_total",
                                "Prompts computed and delivered to a decode worker", labels);
  first_tokens = m.AddCounter("aisp_prefill_first_tokens_total",
                              "First tokens drawn for decode workers and delivered", labels);
  feature_bytes =
      m.AddCounter("aisp_prefill_feature_bytes_total",
                   "Features of prompts that went with their KV, for what proposes tokens", labels);
  transfers_failed = m.AddCounter("aisp_prefill_transfers_failed_total",
                                  "Prompts that a decode worker was told have failed", labels);
  grants_refused =
      m.AddCounter("aisp_prefill_grants_refused_total",
                   "Times that a decode worker had no blocks to give, retries included", labels);
  leases_expired = m.AddCounter("aisp_prefill_leases_expired_total",
                                "Grants that ended before all KV was written", labels);
  ConversionMetrics conversions;
  conversions.bytes =
      m.AddCounter("aisp_kv_converted_bytes_total",
                   "KV made in the format of a reader whose pool has another", labels);
  conversions.seconds =
      m.AddCounter("aisp_kv_conversion_seconds_total", "Time that converting it took", labels);
  pusher->SetMetrics(conversions);
  if (deps.fetcher != nullptr) deps.fetcher->AddFetchMetrics(m, labels);
  for (const KvTransport* transport : deps.connector->transports()) {
    const MetricLabels lane = WithLabel(labels, "lane", transport->capabilities().name);
    LaneMetrics out;
    out.bytes = m.AddCounter("aisp_kv_transfer_bytes_total",
                             "KV bytes written into decode workers' pools, by lane", lane);
    out.busy_seconds = m.AddCounter("aisp_kv_transfer_busy_seconds_total",
                                    "Time in which a write of the lane was under way", lane);
    out.failed = m.AddCounter("aisp_kv_write_failures_total",
                              "Writes that failed or were cut by a fence, by lane", lane);
    out.write_seconds =
        m.AddHistogram("aisp_kv_write_seconds", "Start to remote completion of one write, by lane",
                       StepBuckets(), lane);
    pusher->SetMetrics(transport, out);
  }
}

}  // namespace aisp
