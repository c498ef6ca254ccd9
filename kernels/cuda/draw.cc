#include "kernels/cuda/draw.h"

#include "common/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/draw_kernels.h"

namespace aisp::cuda {
namespace {

class CudaTokenDrawer final : public TokenDrawer {
 public:
  CudaTokenDrawer(Buffer edited, Buffer slices, int32_t max_rows, int32_t vocabulary)
      : edited_(std::move(edited)),
        slices_(std::move(slices)),
        max_rows_(max_rows),
        vocabulary_(vocabulary) {}

  size_t bytes() const override { return edited_.bytes() + slices_.bytes(); }

  Status Draw(const DrawParams& p, Stream& stream) override {
    AISP_CHECK(p.num_rows <= max_rows_ && p.logits.cols() == vocabulary_);
    DrawCall call;
    call.logits = p.logits.as<const float>();
    call.stride = p.logits.strides[0];
    call.vocabulary = vocabulary_;
    call.rows = p.rows;
    call.edits = p.edits;
    call.num_rows = p.num_rows;
    call.slot_tokens = p.slot_tokens;
    call.drawn = p.drawn;
    call.edited = static_cast<float*>(edited_.data());
    call.slices = static_cast<DrawSlice*>(slices_.data());
    return LaunchDraw(call, HandleOf(stream));
  }

 private:
  const Buffer edited_, slices_;
  const int32_t max_rows_, vocabulary_;
};

}  // namespace

Result<std::unique_ptr<TokenDrawer>> MakeCudaTokenDrawer(int32_t max_rows, int32_t vocabulary,
                                                         Device& device) {
  const auto rows = static_cast<size_t>(max_rows);
  AISP_ASSIGN_OR_RETURN(
      Buffer edited,
      device.Allocate(rows * static_cast<size_t>(vocabulary) * sizeof(float), MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(
      Buffer slices, device.Allocate(rows * kDrawSlices * sizeof(DrawSlice), MemoryKind::kDevice));
  return std::make_unique<CudaTokenDrawer>(std::move(edited), std::move(slices), max_rows,
                                           vocabulary);
}

}  // namespace aisp::cuda
