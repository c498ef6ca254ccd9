// The memory that a model needs on a GPU, and the error when it does not fit.
#include "server/memory_plan.h"

#include <gmock/gmock.h>

namespace aisp {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr uint64_t kGiB = uint64_t{1} << 30;

ModelSpec Shape(const std::string& name) {
  auto spec = LoadModelSpec(AISP_SOURCE_DIR "/config/models/" + name + ".json");
  EXPECT_TRUE(spec) << name;
  return *spec;
}

// Published parameter counts, two bytes each.
TEST(MemoryPlan, WeightsAreThoseOfThePublishedModels) {
  const std::pair<const char*, double> models[] = {{"llama-3.1-8b", 8.03e9},
                                                   {"llama-3.2-1b", 1.24e9},
                                                   {"llama-3.1-70b", 70.6e9},
                                                   {"qwen3-30b-a3b", 30.5e9},
                                                   {"mixtral-8x7b", 46.7e9}};
  for (const auto& [name, parameters] : models) {
    const auto bytes = static_cast<double>(WeightBytesOnGpu(Config(), Shape(name)));
    EXPECT_NEAR(bytes / (2 * parameters), 1, 0.01) << name;
  }
  Config fp8;
  fp8.model.quantization = "fp8";
  const ModelSpec llama = Shape("llama-3.1-8b");
  EXPECT_NEAR(static_cast<double>(WeightBytesOnGpu(fp8, llama)), 9.08e9, 0.1e9);
}

TEST(MemoryPlan, ARefusalNamesNeedRoomAndWayOut) {
  Config config;
  config.model.weights = "random:1";
  config.model.path = AISP_SOURCE_DIR "/config/models/llama-3.1-8b.json";
  config.engine.kv_memory = 20 * kGiB;
  const auto served = LoadServedModel(config);
  ASSERT_TRUE(served) << served.error().message;
  const DeviceInfo device{.kind = "cuda", .name = "NVIDIA H200"};
  EXPECT_TRUE(CheckGpuMemory(config, **served, device, {140 * kGiB, 36 * kGiB}));
  const Status pool = CheckGpuMemory(config, **served, device, {140 * kGiB, 30 * kGiB});
  ASSERT_FALSE(pool);
  EXPECT_EQ(pool.error().code, Code::kResourceExhausted);
  EXPECT_THAT(pool.error().message,
              AllOf(HasSubstr("llama-3.1-8b needs 35"), HasSubstr("20 GiB"), HasSubstr("30 GiB"),
                    HasSubstr("140 GiB"), HasSubstr("NVIDIA H200"), HasSubstr("--kv-memory")));
  const Status weights = CheckGpuMemory(config, **served, device, {140 * kGiB, 8 * kGiB});
  ASSERT_FALSE(weights);
  EXPECT_THAT(weights.error().message, HasSubstr("--quantization"));
}

}  // namespace
}  // namespace aisp
