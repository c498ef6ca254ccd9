#include "commands/programme_map.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <vector>

#include "kernels/cuda/table/planning.h"
#include "model/model.h"
#include "server/backend.h"
#include "server/process.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr int32_t kContext = 1024;
constexpr int32_t kMostContext = 4096;  // limit of the tables built at load

// The tuning profile shipped with the shapes.
std::string ShippedProfile() {
  for (const char* relative :
       {"/../config/profiles", "/../../config/profiles", "/../share/aisp/profiles"}) {
    const std::string path = ExecutableFolder() + relative + "/nvidia-h200.profile";
    if (std::ifstream(path)) return path;
  }
  return "";
}

// Launches that differ only in the layer are printed once.
struct Line {
  LaunchInfo info;
  std::string like;  // its nodes without layer numbers
  int32_t count = 0;
};

std::string WithoutLayers(const std::string& nodes) {
  std::string out;
  for (const char c : nodes) {
    if (std::isdigit(static_cast<unsigned char>(c)) == 0) out += c;
  }
  return out;
}

std::vector<Line> Gather(const std::vector<LaunchInfo>& launches, bool all) {
  std::vector<Line> lines;
  for (const LaunchInfo& info : launches) {
    const std::string like = WithoutLayers(info.nodes);
    const auto known = std::find_if(lines.begin(), lines.end(), [&](const Line& line) {
      return line.like == like && line.info.kernel == info.kernel;
    });
    if (!all && known != lines.end()) {
      ++known->count;
      continue;
    }
    lines.push_back({info, like, 1});
  }
  return lines;
}

Bucket BucketOf(const ProgrammeMapOptions& o) {
  Bucket bucket;
  bucket.sequences = o.batch;
  bucket.rows_per_sequence = o.rows;
  bucket.rows = o.batch * o.rows;
  bucket.prompt_context = o.rows == 1 ? 0 : o.context;
  bucket.mode = o.rows == 1 ? StepMode::kDecode : StepMode::kPrefill;
  bucket.part = StepPart::kWhole;
  bucket.logit_rows = bucket.draws = o.batch;
  bucket.all_logits = o.rows == 1;
  return bucket;
}

void Print(const std::vector<LaunchInfo>& launches, bool all) {
  double bytes = 0, us = 0;
  for (const LaunchInfo& info : launches) {
    bytes += info.bytes;
    us += info.us;
  }
  fmt::print("{:<58} {:<46} {:>6} {:>5} {:>10} {:>9}\n", "nodes", "kernel", "grid", "times",
             "MB each", "us each");
  for (const Line& line : Gather(launches, all)) {
    const std::string slow = line.info.slow.empty() ? "" : "  SLOW: " + line.info.slow;
    fmt::print("{:<58} {:<46} {:>6} {:>5} {:>10.3f} {:>9.2f}{}\n", line.info.nodes,
               line.info.kernel, line.info.grid, line.count, line.info.bytes / 1e6, line.info.us,
               slow);
  }
  fmt::print("{} launches, {:.1f} MB, {:.3f} ms predicted\n", launches.size(), bytes / 1e6,
             us / 1e3);
}

}  // namespace

Status PrintProgrammeMap(const Config& config, const ServedModel& served,
                         const ProgrammeMapOptions& options) {
  const int32_t rows = options.batch * options.rows;
  cuda::DeviceFacts facts = cuda::H200Facts();
  facts.max_rows = std::max(facts.max_rows, rows);
  facts.max_sequences = std::max(facts.max_sequences, options.batch);
  facts.exclusive = config.role != "split";
  facts.fp8_activation_rows = served.fp8_activation_rows;
  cuda::TuningProfile profile;
  // "auto" and "" are not file names.
  const bool own = fs::is_regular_file(config.model.tuning_cache);
  const std::string from = own ? config.model.tuning_cache : ShippedProfile();
  if (!from.empty()) {
    std::ifstream file(from);
    profile.Read(file);
  }
  const int32_t context = options.context > 0 ? options.context : kContext;
  const cuda::PlanningBackend backend =
      cuda::MakePlanningBackend(facts, std::move(profile), context);

  ModelOptions model_options;
  if (config.model.dtype != "auto") model_options.compute_dtype = ParseDType(config.model.dtype);
  model_options.max_batch_tokens = rows;
  model_options.max_logit_rows = model_options.max_sequences = options.batch;
  model_options.max_context = std::min(served.spec.max_position, kMostContext);
  model_options.random_weights = 1;
  model_options.weight_format = WeightFormatOf(config.model.quantization);
  AISP_ASSIGN_OR_RETURN(const auto model,
                        Model::Load(served.path, model_options, *backend.device, *backend.ops));
  KvLayout kv = served.kv_layout;
  // "auto" follows the compute dtype of the GPU, not of this host.
  if (config.model.kv_dtype == "auto") kv.dtype = model->compute_dtype();
  // The pool's location does not matter here.
  kv.num_blocks = std::max(1, kv.num_blocks);
  AISP_ASSIGN_OR_RETURN(const Buffer pool,
                        backend.device->Allocate(kv.PoolBytes(), MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(model->Bind(KvViews(kv, pool.data()), nullptr));
  AISP_ASSIGN_OR_RETURN(PreparedStep* const step, model->Prepare(BucketOf(options)));
  fmt::print(
      "{}: a step of {} sequence{} with {} row{} each, {} keys each, on an {}\n"
      "resolved without a GPU from {}; times are predictions from bytes and products\n\n",
      served.name, options.batch, options.batch == 1 ? "" : "s", options.rows,
      options.rows == 1 ? "" : "s", context, facts.name,
      from.empty() ? "no profile at all"
      : own        ? "this machine's tuning cache"
                   : "the shipped profile of an H200");
  Print(step->Describe(), options.all);
  return {};
}

}  // namespace aisp
