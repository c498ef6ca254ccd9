#include "decode/speculation_metrics.h"

#include <algorithm>
#include <string>

#include "speculation/config.h"
#include "speculation/speculator.h"
#include "worker/worker_metrics.h"

namespace aisp {
namespace {

std::vector<double> Lengths() { return {0, 1, 2, 3, 4, 5, 6, 8, 10, 12, 16, 20, 24, 32}; }

}  // namespace

SpeculationMetrics::SpeculationMetrics(Metrics& m, const MetricLabels& labels) {
  static_assert(kPositions >= SpeculationConfig::kMostTokens);
  Handles h;
  h.drafts = m.AddCounter("aisp_spec_decode_num_drafts_total",
                          "Drafts of at least one token that a step verified", labels);
  h.drafted = m.AddCounter("aisp_spec_decode_num_draft_tokens_total",
                           "Proposed tokens that were verified", labels);
  h.accepted = m.AddCounter("aisp_spec_decode_num_accepted_tokens_total",
                            "Proposed tokens that were the ones drawn", labels);
  h.seconds = m.AddCounter("aisp_spec_decode_propose_seconds_total",
                           "Time between steps in which tokens were proposed and chosen", labels);
  const auto disabled = [&](const char* reason) {
    return m.AddCounter("aisp_spec_decode_disabled_total",
                        "Sequences that went on without their proposer",
                        WithLabel(labels, "reason", reason));
  };
  h.failed = disabled("failed");
  h.slow = disabled("slow");
  h.acceptance_length = m.AddHistogram(
      "aisp_spec_decode_acceptance_length",
      "Tokens that a verified draft brought, the one drawn behind it included", Lengths(), labels);
  h.chosen_length = m.AddHistogram("aisp_spec_decode_draft_length",
                                   "Proposed tokens that were verified at once", Lengths(), labels);
  for (size_t at = 0; at < kPositions; ++at) {
    h.accepted_at.push_back(m.AddCounter("aisp_spec_decode_num_accepted_tokens_per_pos_total",
                                         "Accepted tokens by their position in the draft",
                                         WithLabel(labels, "position", std::to_string(at))));
  }
  handles_ = std::move(h);
}

void SpeculationMetrics::Record(const CollectOutput& out, const Speculator* speculator) {
  if (!handles_ || speculator == nullptr) return;
  Handles& h = *handles_;
  for (const VerifiedDraft& draft : out.drafts) {
    if (draft.drafted == 0) continue;
    h.drafts.Add();
    h.drafted.Add(draft.drafted);
    h.accepted.Add(draft.accepted);
    h.chosen_length.Observe(draft.drafted);
    h.acceptance_length.Observe(draft.accepted + 1);
    const auto positions = std::min(static_cast<size_t>(draft.accepted), kPositions);
    for (size_t at = 0; at < positions; ++at) h.accepted_at[at].Add();
  }
  h.seconds.Add(ToSeconds(out.timing.propose));
  const SpeculatorStats& stats = speculator->stats();
  h.failed.Add(static_cast<double>(stats.failed - failed_recorded_));
  h.slow.Add(static_cast<double>(stats.slow - slow_recorded_));
  failed_recorded_ = stats.failed;
  slow_recorded_ = stats.slow;
}

}  // namespace aisp
