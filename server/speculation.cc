#include "server/speculation.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/log.h"
#include "server/device_defaults.h"
#include "speculation/ngram_proposer.h"
#include "speculation/suffix_proposer.h"

namespace aisp {

int32_t MaxDraftRows(const Config::Engine& engine) {
  constexpr int64_t kMost = 128;
  if (engine.speculative_config == "off") return 0;
  return static_cast<int32_t>(
      std::clamp<int64_t>(engine.max_batch_tokens - engine.max_sequences, 0, kMost));
}

Result<SpeculationConfig> SpeculationConfigOf(const Config& config) {
  const std::string& text = config.engine.speculative_config;
  AISP_ASSIGN_OR_RETURN(const SpeculationConfig parsed, ParseSpeculationConfig(text));
  if (parsed.method == SpeculationConfig::Method::kOff) return parsed;
  if (parsed.method == SpeculationConfig::Method::kDraftModel) {
    return Unimplemented(
        "--speculative-config asks for draft_model, which no worker can do yet; use suffix or "
        "ngram");
  }
  const int32_t rows = MaxDraftRows(EngineSettingsOf(config));
  if (parsed.num_tokens > rows) {
    return InvalidArgument(fmt::format(
        "num_speculative_tokens is {} and a step has {} rows for proposed tokens; lower it, or "
        "raise --max-batch-tokens above --max-num-seqs",
        parsed.num_tokens, rows));
  }
  return parsed;
}

Result<std::shared_ptr<Speculator>> MakeSpeculator(const Config& config, const Clock* clock) {
  AISP_ASSIGN_OR_RETURN(const SpeculationConfig chosen, SpeculationConfigOf(config));
  std::unique_ptr<Proposer> proposer;
  switch (chosen.method) {
    case SpeculationConfig::Method::kNgram:
      proposer = std::make_unique<NgramProposer>(chosen.ngram);
      break;
    case SpeculationConfig::Method::kSuffix:
      proposer = std::make_unique<SuffixProposer>(chosen.suffix);
      break;
    case SpeculationConfig::Method::kOff:
    case SpeculationConfig::Method::kDraftModel:
      return std::shared_ptr<Speculator>();
  }
  LogInfo("speculation", {{"method", MethodName(chosen.method)}, {"tokens", chosen.num_tokens}});
  return std::make_shared<Speculator>(
      SpeculatorOptions{.num_tokens = chosen.num_tokens, .adaptive = chosen.adaptive},
      std::move(proposer), clock);
}

}  // namespace aisp
