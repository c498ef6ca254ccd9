// Error messages for GPUs that cannot be used: the reason, the values, and what to do instead.
#include <gmock/gmock.h>

#include "kernels/cuda/capability.h"
#include "tests/kernels/cuda/gpu_ops.h"

namespace aisp {
namespace {

using testing::AllOf;
using testing::AnyOf;
using testing::HasSubstr;

TEST(GpuMessages, WithoutADriverTheCpuIsNamed) {
  const auto opened = OpenTestGpu();
  if (opened) GTEST_SKIP() << "there is a GPU";
  EXPECT_EQ(opened.error().code, Code::kNotFound);
  EXPECT_THAT(opened.error().message, AnyOf(HasSubstr("use --device cpu"), HasSubstr("AISP_CUDA")));
}

TEST(GpuMessages, AnOldDriverIsToldItsVersionAndOurs) {
  EXPECT_TRUE(cuda::CheckDriver(13000, 13000).has_value());
  EXPECT_TRUE(cuda::CheckDriver(14020, 13010).has_value());
  // A driver of the same major version supports every minor one.
  EXPECT_TRUE(cuda::CheckDriver(13000, 13010).has_value());
  const Status old = cuda::CheckDriver(12040, 13000);
  ASSERT_FALSE(old.has_value());
  EXPECT_EQ(old.error().code, Code::kFailedPrecondition);
  EXPECT_THAT(old.error().message,
              AllOf(HasSubstr("CUDA 12.4"), HasSubstr("13.x"), HasSubstr("update the driver"),
                    HasSubstr("--device cpu")));
}

TEST(GpuMessages, AGpuWithoutCodeIsNamedWithItsCapability) {
  EXPECT_TRUE(cuda::CheckCode("NVIDIA H200", {9, 0}).has_value());
  const Status volta = cuda::CheckCode("Tesla V100", {7, 0});
  ASSERT_FALSE(volta.has_value());
  EXPECT_EQ(volta.error().code, Code::kUnavailable);
  EXPECT_THAT(volta.error().message, AllOf(HasSubstr("Tesla V100"), HasSubstr("7.0"),
                                           HasSubstr("9.0"), HasSubstr("--device cpu")));
}

using GpuMessage = GpuOps;

TEST_F(GpuMessage, MemoryThatIsNotThereIsToldWithWhatIsFreeAndWhatHelps) {
  const auto memory = gpu_.device->Allocate(size_t{1} << 50, MemoryKind::kDevice);
  ASSERT_FALSE(memory.has_value());
  EXPECT_EQ(memory.error().code, Code::kResourceExhausted);
  EXPECT_THAT(memory.error().message, AllOf(HasSubstr("1 PiB"), HasSubstr("free"),
                                            HasSubstr("--kv-memory"), HasSubstr("--quantization")));
  // The device stays usable.
  EXPECT_TRUE(gpu_.device->Allocate(4096, MemoryKind::kDevice).has_value());
}

TEST_F(GpuMessage, ShapesWithoutAKernelAreRefusedAtLoad) {
  TwinTensor gate = Make(DType::kF32, {24, 20}), up = Make(DType::kF32, {24, 20});
  const TensorView parts[] = {gate.host, up.host};
  LinearSource source{parts, {}, DType::kBF16, Epilogue::kGatedSilu, DType::kBF16};
  const auto odd = gpu_.ops->PackLinear(source);
  ASSERT_FALSE(odd.has_value());
  EXPECT_EQ(odd.error().code, Code::kUnimplemented);
  EXPECT_THAT(odd.error().message, AllOf(HasSubstr("20 columns"), HasSubstr("16")));
  source.compute_dtype = DType::kF16;
  EXPECT_EQ(gpu_.ops->PackLinear(source).error().code, Code::kUnimplemented);
}

}  // namespace
}  // namespace aisp
