// `aisp pull org/name[@revision]`: downloads a model from the hub into the cache.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <string>

#include "commands/commands.h"
#include "common/clock.h"
#include "common/progress.h"
#include "common/strings.h"
#include "config/command_line.h"
#include "config/hub_environment.h"
#include "hub/cache.h"
#include "hub/repo.h"
#include "server/log_setup.h"
#include "server/model_pull.h"
#include "server/model_source.h"
#include "server/process.h"
#include "server/served_model.h"

namespace aisp {
namespace {

constexpr std::array<ExtraFlag, 1> kExtras = {{
    {"--no-weights", "", "Everything but the weights, for --weights random:SEED."},
}};

std::string Help() {
  constexpr std::array<std::string_view, 2> kPrefixes = {"model.path", "log."};
  return "aisp pull [org/name[@revision]] [flags]\n\n"
         "Downloads a model into Hugging Face's cache, as much of it as serving needs: "
         "config.json, "
         "the tokenizer,\nthe chat template, and the safetensors that its index names. In "
         "parallel, "
         "checked by hash, and going on\nwhere an earlier try ended. Prints the folder. Without a "
         "name: what --model or --config says.\n\n"
         "  HF_HOME, HF_HUB_CACHE     where the cache is (~/.cache/huggingface/hub)\n"
         "  HF_TOKEN                  for private and gated models\n"
         "  HF_ENDPOINT               another hub (https://huggingface.co)\n"
         "  HF_HUB_OFFLINE=1          only look into the cache\n"
         "  HF_HUB_DOWNLOAD_TIMEOUT   seconds without a byte before a connection is tried again "
         "(10)\n\n" +
         HelpForSettings(kPrefixes, kExtras);
}

// For a model on disk: says that no download is needed.
Status PrintLocal(const Config& config) {
  AISP_ASSIGN_OR_RETURN(const std::string folder, ResolveModelPath(config));
  fmt::print(stderr, "nothing to download: {}\n",
             config.model.path.empty() ? "the built-in model is served" : "it is on disk");
  fmt::print("{}\n", folder);
  return {};
}

Status RunPull(const CommandLine& line, StopSignals* signals) {
  const Config& config = line.config;
  const bool weights = !line.HasExtra("no-weights") && config.model.weights.empty();
  // A name given as an argument means the hub; one from a configuration may be a folder or a shape.
  if (line.positional.empty() && !NeedsTheHub(config)) return PrintLocal(config);
  AISP_ASSIGN_OR_RETURN(const HubRepo repo, ParseHubRepo(config.model.path));
  AISP_ASSIGN_OR_RETURN(const HubOptions hub, HubOptionsFromEnvironment());
  if (hub.offline) {
    const auto found = FindSnapshot(hub, repo, weights, /*tokenizer=*/false);
    if (!found) {
      return tl::unexpected(
          Error{found.error().code,
                found.error().message + "; HF_HUB_OFFLINE is set, so it is not downloaded"});
    }
    fmt::print("{}\n", *found);
    return {};
  }
  const SteadyClock clock;
  const Instant begin = clock.Now();
  AISP_ASSIGN_OR_RETURN(const Pulled pulled, PullModel(config, hub, repo, weights, [signals] {
                          return !signals->WaitFor(0).empty();
                        }));
  const double seconds = ToSeconds(clock.Now() - begin);
  fmt::print(stderr, "{} at commit {}: {} files, {}; {} downloaded in {:.1f} s\n", repo.Shown(),
             pulled.commit, pulled.files, HumanBytes(pulled.bytes), HumanBytes(pulled.new_bytes),
             seconds);
  fmt::print("{}\n", pulled.folder);
  return {};
}

}  // namespace

int RunPull(const std::vector<std::string>& args) {
  auto line = ParseCommandLine(args, kExtras);
  if (!line) return ReportUsageError("pull", line.error().message);
  if (AnswerCommonFlags(*line, Help())) return 0;
  if (line->positional.size() > 1) return ReportUnexpectedArgument("pull", line->positional[1]);
  if (!line->positional.empty()) {
    line->config.model.path = line->positional[0];
    if (const auto repo = ParseHubRepo(line->config.model.path); !repo)
      return ReportUsageError("pull", repo.error().message);
  }
  const LogSession log(LogOptionsOf(line->config, "pull", ""));
  StopSignals signals(-1);
  const Status pulled = RunPull(*line, &signals);
  if (pulled) return 0;
  if (pulled.error().code == Code::kCancelled)
    return ReportFailure("stopped; the next pull goes on from what has come");
  return ReportFailure(pulled.error().message);
}

}  // namespace aisp
