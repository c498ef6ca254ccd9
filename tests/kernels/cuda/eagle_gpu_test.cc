// An EAGLE-3 head on the GPU: its logits are the CPU's, and features are copied to the host and
// back. draft_heads_gpu_test.cc tests its drafts.
#include <cstring>
#include <optional>

#include "engine/async_draft_head.h"
#include "engine/async_executor.h"
#include "engine/warm_up.h"
#include "model/bf16.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/kernels/cuda/head_parity.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

// A head with its own embedding; device and operations outlive it.
struct EagleOn {
  EagleOn(Device& device, Ops& ops, const EagleSpec& spec, DType dtype, DType kv_dtype,
          std::span<const float> embedding_values) {
    const auto stream = *device.CreateStream();
    embedding_memory = *device.Allocate(embedding_values.size_bytes(), MemoryKind::kDevice);
    AISP_CHECK(device
                   .Copy(embedding_memory.data(), embedding_values.data(),
                         embedding_values.size_bytes(), *stream)
                   .has_value());
    AISP_CHECK(device.Synchronize(*stream).has_value());
    const TensorView embedding = TensorView::Dense(embedding_memory.data(), DType::kF32,
                                                   {spec.layer.vocabulary, spec.layer.hidden});
    auto made =
        EagleHead::Load(GoldenDirectory("llama-eagle3"), spec, embedding,
                        {.compute_dtype = dtype, .max_rows = 64, .max_sequences = 8}, device, ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    on.emplace(device, std::move(*made), kv_dtype);
  }
  Buffer embedding_memory;
  std::optional<HeadOn> on;
};

void ExpectParity(CudaBackend& gpu, DType dtype, double tolerance) {
  const auto device = MakeTestDevice();
  const auto ops = MakeTestOps();
  const ModelSpec target = *LoadModelSpec(GoldenDirectory("llama"));
  const EagleSpec spec = *LoadEagleSpec(GoldenDirectory("llama-eagle3"), target);
  EXPECT_LT(spec.draft_vocabulary, target.vocabulary);
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  std::vector<float> embedding(static_cast<size_t>(target.vocabulary * target.hidden));
  for (float& v : embedding) v = normal(random);
  EagleOn cpu(*device, *ops, spec, DType::kF32, DType::kF32, embedding);
  EagleOn there(*gpu.device, *gpu.ops, spec, dtype, dtype, embedding);
  ExpectHeadParity(*cpu.on, *there.on, tolerance);
}

TEST(GpuEagle, HasTheLogitsOfTheCpu) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kF32, 1e-4);
}

TEST(GpuEagle, HasTheLogitsOfTheCpuInBf16) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kBF16, 3e-2);
}

// A target that provides features and its head, of the built-in models.
struct Pair {
  static std::optional<Pair> Create(CudaBackend& gpu, DType dtype) {
    const std::string target = StoryDirectory("story-7m"),
                      folder = StoryDirectory("story-7m-eagle3");
    if (target.empty() || folder.empty()) return std::nullopt;
    Pair pair;
    pair.folder = folder;
    pair.spec = *LoadEagleSpec(folder, *LoadModelSpec(target));
    ModelExecutorOptions base;
    base.model.compute_dtype = dtype;
    base.kv_dtype = dtype;
    base.model.feature_layers = pair.spec.feature_layers;
    base.max_slots = 6;
    base.max_draft_rows = 24;
    base.num_blocks = 120;
    auto made = AsyncExecutor::Create(target, {.base = base}, *gpu.device, *gpu.ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    pair.executor = std::move(*made);
    return pair;
  }
  std::unique_ptr<AsyncDraftHead> Head(CudaBackend& gpu) const {
    DraftHeadOptions options;
    options.head.compute_dtype = executor->model().compute_dtype();
    options.kv_dtype = options.head.compute_dtype;
    options.head.max_rows = 64;
    options.head.max_sequences = 6;
    options.head.max_context = 1024;
    options.num_blocks = 120;
    auto made = AsyncDraftHead::Create(folder, spec, executor->model().embedding(), options,
                                       *executor->stream(), *gpu.device, *gpu.ops);
    AISP_CHECK_MSG(made.has_value(), made.error().message);
    return std::move(*made);
  }

  std::string folder;
  EagleSpec spec;
  std::unique_ptr<AsyncExecutor> executor;
};

std::vector<float> InF32(std::span<const std::byte> rows, DType dtype) {
  std::vector<float> out(rows.size() / DTypeBytes(dtype));
  if (dtype == DType::kF32) {
    std::memcpy(out.data(), rows.data(), rows.size());
  } else {
    WidenBf16({reinterpret_cast<const uint16_t*>(rows.data()), out.size()}, out.data());
  }
  return out;
}

// The features that a step copies to the host equal those on the device, and copying them back
// keeps the bits.
TEST(GpuEagle, FeaturesComeToTheHostAndBackAsTheyAre) {
  AISP_OPEN_GPU(gpu);
  for (const DType dtype : {DType::kF32, DType::kBF16}) {
    const std::optional<Pair> pair = Pair::Create(gpu, dtype);
    if (!pair) GTEST_SKIP() << "the built-in models are not there";
    AsyncExecutor& executor = *pair->executor;
    EXPECT_GE(executor.max_kept_features(), 64);
    const WarmUpStep prompt(80, false, executor.kv_layout().block_tokens);
    std::vector<int32_t> wanted, kept;
    for (int32_t row = 3; row < 80; ++row) wanted.push_back(row);
    for (int32_t row = 16; row < 80; ++row) {
      if (row != 40) kept.push_back(row);
    }
    StepInput input;
    input.step = 1;
    input.batch = prompt.batch();
    input.feature_rows = wanted;
    input.kept_rows = kept;
    const auto ticket = executor.Launch(input);
    ASSERT_TRUE(ticket.has_value()) << ticket.error().message;
    const auto result = executor.Collect(*ticket);
    ASSERT_TRUE(result.has_value()) << result.error().message;
    const Buffer there = *gpu.device->Allocate(result->device_features.size(), MemoryKind::kHost);
    ASSERT_TRUE(gpu.device->Copy(there.data(), result->device_features.data(), there.bytes(),
                                 *executor.stream()));
    ASSERT_TRUE(gpu.device->Synchronize(*executor.stream()));
    const std::vector<float> all =
        InF32({static_cast<const std::byte*>(there.data()), there.bytes()}, dtype);
    const auto size = static_cast<size_t>(executor.feature_size());
    ASSERT_EQ(all.size(), wanted.size() * size);
    ASSERT_EQ(result->kept_features.size(), kept.size() * size);
    for (size_t i = 0; i < kept.size(); ++i) {
      const auto row = result->kept_features.subspan(i * size, size);
      const auto at = all.begin() + static_cast<ptrdiff_t>(static_cast<size_t>(kept[i] - 3) * size);
      ASSERT_TRUE(std::equal(row.begin(), row.end(), at)) << "row " << kept[i];
      ASSERT_NE(std::count(row.begin(), row.end(), 0.0f), static_cast<ptrdiff_t>(size));
    }
    const auto head = pair->Head(gpu);
    const std::span<const float> run = result->kept_features;
    std::vector<std::span<const std::byte>> placed;
    ASSERT_TRUE(head->PlaceFeatures(std::vector<std::span<const float>>(3, run), &placed));
    ASSERT_EQ(placed.size(), 3u);
    for (const std::span<const std::byte> rows : placed) {
      const std::vector<float> back = InF32(rows, dtype);
      ASSERT_TRUE(std::equal(back.begin(), back.end(), run.begin(), run.end()));
    }
  }
}

}  // namespace
}  // namespace aisp
