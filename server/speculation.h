// Who proposes tokens on a decode worker: engine.speculative_config and engine.forced_runs made
// into a Speculator.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "config/config.h"
#include "server/backend.h"
#include "server/draft_memory.h"
#include "server/kv_pool.h"
#include "server/served_model.h"
#include "speculation/config.h"
#include "speculation/speculator.h"

namespace aisp {

// Rows of a step that verify proposed tokens, on a device of either kind; 0 where a step has no
// room beside its sequences. `engine` with the device's defaults (server/device_defaults.h).
int32_t MaxDraftRows(const Config::Engine& engine);

// INVALID_ARGUMENT: what speculation/config.h refuses, or longer drafts than a
// step has rows for, with both values.
Result<SpeculationConfig> SpeculationConfigOf(const Config& config);

// OK, or INVALID_ARGUMENT that names the first of vocabulary and tokenizer in which the draft
// differs from the target, and both values. `*_tokenizer`: fingerprints, "" without a tokenizer.
Status CheckDraftModel(const std::string& draft, int32_t draft_vocabulary,
                       const std::string& draft_tokenizer, const ServedModel& served);

// The residual streams that the chosen proposer reads (ModelOptions::feature_layers); none where it
// reads none. Errors are those of the head's config.json, or its not fitting the served model.
Result<std::vector<int32_t>> FeatureLayersOf(const SpeculationConfig& chosen,
                                             const ServedModel& served);

// The folder of a draft model or head: one that is there, or the name of one beside the served
// model; where that is a shape, of a shape.
std::string DraftModelFolder(const std::string& named, const ServedModel& served);

// Where the next-token layer lies: in the served checkpoint, or in the folder that is named.
std::string MtpFolder(const SpeculationConfig& chosen, const ServedModel& served);

// What a target that is about to be loaded has to know of its drafts.
struct DraftNeeds {
  std::vector<int32_t> feature_layers;
  DraftMemory memory;  // of a GPU
};
// Whatever can be refused of the configured method before weights are read is refused here.
Result<DraftNeeds> DraftNeedsOf(const Config& config, const ServedModel& served,
                                const DeviceInfo& device);

// Null where speculation is off. A draft model or head is loaded on the backend's device, which
// outlives the proposer, and runs there between the target's steps. A head reads the embeddings of
// the backend's model, which then outlives it too.
Result<std::unique_ptr<Proposer>> MakeProposer(const SpeculationConfig& chosen,
                                               const ServedModel& served, const Backend& backend,
                                               const Clock* clock);
// The same, with who decides how much of it is verified; without a proposer for forced runs alone,
// and null where there are none either.
Result<std::shared_ptr<Speculator>> MakeSpeculator(const SpeculationConfig& chosen,
                                                   bool forced_runs, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock);
Result<std::shared_ptr<Speculator>> MakeSpeculator(const Config& config, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock);

}  // namespace aisp
