// The operations of a GPU and of the CPU, for comparing them on fresh random inputs; the seed is
// printed.
#pragma once

#include <cstdio>

#include "tests/kernels/cuda/gpu.h"

namespace aisp {

// |gpu - reference| / |reference|. FP8 and NVFP4: the reference multiplies the same quantised
// operands.
constexpr double kF32 = 1e-4, kBf16 = 1e-2, kQuantised = 5e-3;
// Block scales are rounded to bf16 (2^-9): with few blocks along K all outputs err in the same
// direction, gate and up both.
constexpr double kQuantisedBlocks = 8e-3;

class GpuOps : public testing::Test {
 protected:
  void SetUp() override {
    auto opened = OpenTestGpu();
    if (!opened && opened.error().code == Code::kNotFound) GTEST_SKIP() << opened.error().message;
    ASSERT_TRUE(opened.has_value()) << opened.error().message;
    gpu_ = std::move(*opened);
    cpu_ = std::move(*MakeCpuOps({}));
    host_ = MakeCpuDevice();
    host_stream_ = std::move(*host_->CreateStream());
    stream_ = std::move(*gpu_.device->CreateStream());
    const uint32_t seed = std::random_device{}();
    random_.seed(seed);
    printf("seed %u\n", seed);
  }
  TwinTensor Make(DType dtype, std::initializer_list<int64_t> shape) {
    return TwinTensor(*gpu_.device, *stream_, dtype, shape);
  }
  void Done(const Status& status) {
    ASSERT_TRUE(status.has_value()) << status.error().message;
    const Status synced = gpu_.device->Synchronize(*stream_);
    ASSERT_TRUE(synced.has_value()) << synced.error().message;
  }

  // Computes a part of a model on the GPU from given inputs.
  void RunOnGpu(const Programme& programme, const Bucket& bucket, const StepInputs& inputs) {
    auto step = gpu_.ops->Prepare(programme, gpu_.ops->Canonical(bucket));
    ASSERT_TRUE(step.has_value()) << step.error().message;
    Done((*step)->Run(inputs, {}, *stream_));
  }

  CudaBackend gpu_;
  std::unique_ptr<Ops> cpu_;
  std::unique_ptr<Device> host_;
  std::unique_ptr<Stream> host_stream_, stream_;
  std::mt19937 random_;
};

}  // namespace aisp
