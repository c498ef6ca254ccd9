// A next-token layer on the GPU: its logits are the CPU's, for every kind of layer.
#include <filesystem>
#include <fstream>

#include "engine/async_executor.h"
#include "model/files.h"
#include "model/json_reader.h"
#include "model/mtp_head.h"
#include "model/safetensors.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/head_parity.h"
#include "tests/model/golden.h"
#include "tests/model/lora_files.h"

namespace aisp {
namespace {

HeadOn LayerOn(Device& device, Ops& ops, const std::string& folder, const Model& target,
               DType dtype) {
  const auto spec = LoadMtpSpec(folder, target.spec());
  AISP_CHECK_MSG(spec.has_value(), spec.error().message);
  auto made =
      MtpHead::Load(folder, *spec, target,
                    {.compute_dtype = dtype, .max_rows = 64, .max_sequences = 8}, device, ops);
  AISP_CHECK_MSG(made.has_value(), made.error().message);
  return HeadOn(device, std::move(*made), dtype);
}

std::unique_ptr<AsyncExecutor> TargetOn(CudaBackend& gpu, const std::string& folder, DType dtype) {
  ModelExecutorOptions base;
  base.model.compute_dtype = base.kv_dtype = dtype;
  base.max_slots = 8;
  base.num_blocks = 16;
  auto made =
      AsyncExecutor::Create(folder, {.base = base, .use_graphs = false}, *gpu.device, *gpu.ops);
  AISP_CHECK_MSG(made.has_value(), made.error().message);
  return std::move(*made);
}

void ExpectParity(CudaBackend& gpu, const std::string& target, const std::string& layer,
                  DType dtype, double tolerance) {
  const Rig cpu = Rig::Open(target, {.compute_dtype = DType::kF32});
  const auto there = TargetOn(gpu, target, dtype);
  HeadOn own = LayerOn(*cpu.device, *cpu.ops, layer, cpu.executor->model(), DType::kF32);
  HeadOn other = LayerOn(*gpu.device, *gpu.ops, layer, there->model(), dtype);
  ExpectHeadParity(own, other, tolerance);
}

TEST(GpuMtp, HasTheLogitsOfTheCpu) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, GoldenDirectory("llama"), GoldenDirectory("llama-mtp"), DType::kF32, 1e-4);
}

TEST(GpuMtp, HasTheLogitsOfTheCpuInBf16) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, GoldenDirectory("llama"), GoldenDirectory("llama-mtp"), DType::kBF16, 3e-2);
}

// Writes a checkpoint of random weights to `folder`: a next-token layer for this model, shaped as
// its last layer.
void WriteLayerBehind(const std::string& model, const std::string& folder) {
  Json config = Json::parse(*ReadTextFile(model + "/config.json"));
  config["num_nextn_predict_layers"] = 1;
  std::ofstream(folder + "/config.json") << config.dump();
  const ModelSpec spec = *LoadModelSpec(model);
  const auto count = static_cast<int32_t>(spec.layers.size());
  const std::string last = fmt::format("model.layers.{}.", count - 1),
                    next = fmt::format("model.layers.{}.", count);
  const int64_t hidden = spec.hidden;
  std::map<std::string, std::vector<int64_t>> shapes = {
      {next + "enorm.weight", {hidden}},
      {next + "hnorm.weight", {hidden}},
      {next + "shared_head.norm.weight", {hidden}},
      {next + "eh_proj.weight", {hidden, 2 * hidden}},
  };
  const auto checkpoint = *Checkpoint::Open(model);
  for (const auto& [name, tensor] : checkpoint->tensors()) {
    if (name.starts_with(last)) shapes[next + name.substr(last.size())] = tensor.shape;
  }
  std::mt19937 random(7);
  FloatTensors tensors;
  for (const auto& [name, shape] : shapes) {
    const bool matrix = shape.size() > 1;
    std::normal_distribution<float> normal(
        matrix ? 0.0f : 1.0f, matrix ? 1 / std::sqrt(static_cast<float>(shape.back())) : 0.1f);
    FloatTensor& tensor = tensors[name];
    tensor.shape = shape;
    tensor.values.resize(static_cast<size_t>(
        std::accumulate(shape.begin(), shape.end(), int64_t{1}, std::multiplies<>())));
    for (float& v : tensor.values) v = normal(random);
  }
  WriteSafetensors(folder + "/model.safetensors", tensors);
}

// Latent attention and experts, as in DeepSeek-V3.
TEST(GpuMtp, WithLatentAttentionAndExpertsHasTheLogitsOfTheCpu) {
  AISP_OPEN_GPU(gpu);
  const std::string model = GoldenDirectory("deepseek-v3");
  const std::string folder =
      (std::filesystem::temp_directory_path() / fmt::format("aisp-mtp-{}", getpid())).string();
  std::filesystem::create_directories(folder);
  WriteLayerBehind(model, folder);
  ExpectParity(gpu, model, folder, DType::kF32, 1e-4);
  // In bf16 a row may choose another expert, so this only checks that it runs.
  const auto target = TargetOn(gpu, model, DType::kBF16);
  HeadOn head = LayerOn(*gpu.device, *gpu.ops, folder, target->model(), DType::kBF16);
  HeadOn same = LayerOn(*gpu.device, *gpu.ops, folder, target->model(), DType::kBF16);
  ExpectHeadParity(head, same, 1e-2);
  std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace aisp
