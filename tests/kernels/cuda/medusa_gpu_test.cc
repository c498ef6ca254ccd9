// Medusa's heads on the GPU: their logits are the CPU's. draft_heads_gpu_test.cc tests their
// drafts.
#include <random>

#include "engine/async_executor.h"
#include "model/feature_head.h"
#include "model/medusa_head.h"
#include "tests/kernels/cuda/gpu.h"
#include "tests/model/golden.h"

namespace aisp {
namespace {

constexpr int32_t kMostRows = 24;

// Random features of so many rows, in the device's format; the logits of one head there.
class HeadsOnGpu {
 public:
  HeadsOnGpu(CudaBackend& gpu, const MedusaSpec& spec, const std::string& folder, DType dtype,
             std::optional<WeightFormat> format)
      : device_(*gpu.device) {
    ModelExecutorOptions base;
    base.model.compute_dtype = base.kv_dtype = dtype;
    base.max_slots = 8;
    base.num_blocks = 16;
    auto target = AsyncExecutor::Create(GoldenDirectory("llama"),
                                        {.base = base, .use_graphs = false}, device_, *gpu.ops);
    AISP_CHECK_MSG(target.has_value(), target.error().message);
    target_ = std::move(*target);
    auto heads =
        MedusaHeads::Load(folder, spec, target_->model(),
                          {.max_rows = kMostRows, .weight_format = format}, device_, *gpu.ops);
    AISP_CHECK_MSG(heads.has_value(), heads.error().message);
    heads_ = std::move(*heads);
    stream_ = *device_.CreateStream();
  }

  void Run(std::span<const float> features, int32_t rows) {
    std::vector<std::byte> stored(static_cast<size_t>(rows) * heads_->feature_bytes());
    heads_->FormatFeatures(features, stored.data());
    const Buffer memory = *device_.Allocate(stored.size(), MemoryKind::kDevice);
    ASSERT_TRUE(device_.Copy(memory.data(), stored.data(), stored.size(), *stream_));
    // In reverse order, so that no row is at its own index.
    std::vector<const std::byte*> places;
    for (int32_t i = rows; i > 0; --i) {
      places.push_back(static_cast<const std::byte*>(memory.data()) +
                       static_cast<size_t>(i - 1) * heads_->feature_bytes());
    }
    ASSERT_TRUE(heads_->TakeFeatures(places, *stream_));
    ASSERT_TRUE(heads_->Enqueue(rows, heads_->heads(), {}, *stream_));
    ASSERT_TRUE(device_.Synchronize(*stream_));
  }

  std::vector<float> Logits(int32_t head, int32_t row) const {
    std::vector<float> out(static_cast<size_t>(heads_->vocabulary()));
    const TensorView from = heads_->target_logits().Rows(heads_->LogitIndex(head, row), 1);
    EXPECT_TRUE(device_.Copy(out.data(), from.data, out.size() * sizeof(float), *stream_));
    EXPECT_TRUE(device_.Synchronize(*stream_));
    return out;
  }

 private:
  Device& device_;
  std::unique_ptr<AsyncExecutor> target_;
  std::unique_ptr<MedusaHeads> heads_;
  std::unique_ptr<Stream> stream_;
};

void ExpectParity(CudaBackend& gpu, DType dtype, std::optional<WeightFormat> format,
                  double tolerance) {
  const std::string folder = GoldenDirectory("llama-medusa");
  const Rig cpu = Rig::Open(GoldenDirectory("llama"), {.compute_dtype = DType::kF32});
  const Model& target = cpu.executor->model();
  const MedusaSpec spec = *LoadMedusaSpec(folder, target.spec());
  const auto here =
      *MedusaHeads::Load(folder, spec, target, {.max_rows = kMostRows}, *cpu.device, *cpu.ops);
  HeadsOnGpu there(gpu, spec, folder, dtype, format);
  std::mt19937 random(std::random_device{}());
  std::normal_distribution<float> normal;
  const auto size = static_cast<size_t>(spec.hidden);
  for (const int32_t rows : {1, 3, 8, kMostRows}) {
    std::vector<float> features(static_cast<size_t>(rows) * size);
    for (float& v : features) v = normal(random);
    std::vector<const float*> from;
    for (int32_t i = rows; i > 0; --i)
      from.push_back(features.data() + static_cast<size_t>(i - 1) * size);
    ASSERT_TRUE(here->Run(from, spec.heads));
    there.Run(features, rows);
    const std::span<const TokenId> tokens = here->target_tokens();
    for (int32_t head = 0; head < spec.heads; ++head) {
      double difference = 0, norm = 1e-30;
      for (int32_t row = 0; row < rows; ++row) {
        const std::span<const float> want = here->Logits(head, row);
        const std::vector<float> have = there.Logits(head, row);
        size_t none = 0;
        for (const float logit : have) none += logit == kNoLogit ? 1 : 0;
        ASSERT_EQ(none, have.size() - want.size());
        for (size_t i = 0; i < want.size(); ++i) {
          const double apart = double{want[i]} - have[static_cast<size_t>(tokens[i])];
          ASSERT_TRUE(std::isfinite(apart));
          difference += apart * apart;
          norm += double{want[i]} * want[i];
        }
      }
      EXPECT_LT(std::sqrt(difference / norm), tolerance) << "head " << head << ", rows " << rows;
    }
  }
}

TEST(GpuMedusa, HasTheLogitsOfTheCpu) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kF32, std::nullopt, 1e-4);
}

TEST(GpuMedusa, HasTheLogitsOfTheCpuInBf16) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kBF16, std::nullopt, 3e-2);
}

TEST(GpuMedusa, HasAboutTheLogitsOfTheCpuInFp8) {
  AISP_OPEN_GPU(gpu);
  ExpectParity(gpu, DType::kBF16, WeightFormat::kFp8, 1e-1);
}

}  // namespace
}  // namespace aisp
