// Builds the Speculator of a decode worker from engine.speculative_config and engine.forced_runs.
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

// Rows of a step that may verify draft tokens, on any device; 0 if a step has no room besides its
// sequences. `engine` must include the device's defaults (server/device_defaults.h).
int32_t MaxDraftRows(const Config::Engine& engine);

// INVALID_ARGUMENT: refused by speculation/config.h, or drafts longer than a step's draft rows,
// with both values.
Result<SpeculationConfig> SpeculationConfigOf(const Config& config);

// INVALID_ARGUMENT when the draft model's vocabulary or tokenizer differs from the target's, with
// both values. `*_tokenizer`: fingerprints, "" without a tokenizer.
Status CheckDraftModel(const std::string& draft, int32_t draft_vocabulary,
                       const std::string& draft_tokenizer, const ServedModel& served);

// Layers whose residual streams the proposer reads (ModelOptions::feature_layers); empty if none.
// Errors: the head's config.json, or a head that does not fit the served model.
Result<std::vector<int32_t>> FeatureLayersOf(const SpeculationConfig& chosen,
                                             const ServedModel& served);

// The folder of a draft model or head: an existing path, or a name beside the served model. If the
// served model is a shape, a shape.
std::string DraftModelFolder(const std::string& named, const ServedModel& served);

// The folder of the MTP layer: the served checkpoint, or the one named in the configuration.
std::string MtpFolder(const SpeculationConfig& chosen, const ServedModel& served);

// What must be known about the drafts before the target is loaded.
struct DraftNeeds {
  std::vector<int32_t> feature_layers;
  DraftMemory memory;  // on a GPU
};
// Checks everything about the configured method that is possible before weights are read.
Result<DraftNeeds> DraftNeedsOf(const Config& config, const ServedModel& served,
                                const DeviceInfo& device);

// Null when speculation is off. A draft model or head is loaded on the backend's device and runs
// there between the target's steps; the device outlives the proposer. A head reads the embeddings
// of the backend's model, which must then outlive it too.
Result<std::unique_ptr<Proposer>> MakeProposer(const SpeculationConfig& chosen,
                                               const ServedModel& served, const Backend& backend,
                                               const Clock* clock);
// A proposer with the policy for how many draft tokens are verified. For forced runs alone it has
// no proposer; null without forced runs too.
Result<std::shared_ptr<Speculator>> MakeSpeculator(const SpeculationConfig& chosen,
                                                   bool forced_runs, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock);
Result<std::shared_ptr<Speculator>> MakeSpeculator(const Config& config, const ServedModel& served,
                                                   const Backend& backend, const Clock* clock);

}  // namespace aisp
