#include "kernels/cuda/draw.h"

#include "common/check.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/draw_kernels.h"
#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {
namespace {

// Allocates scratch arrays for `rows` rows one after another.
struct Scratch {
  Buffer edited, slices, bin_counts, bin_units, lists, candidates;
};

class CudaTokenDrawer final : public TokenDrawer {
 public:
  CudaTokenDrawer(Scratch scratch, int32_t max_rows, int32_t vocabulary)
      : scratch_(std::move(scratch)), max_rows_(max_rows), vocabulary_(vocabulary) {}

  int32_t max_rows() const override { return max_rows_; }

  Status Draw(const DrawParams& p, const PollTag& poll, cudaStream_t stream) override {
    AISP_CHECK(p.num_rows <= max_rows_ && p.logits.cols() == vocabulary_);
    DrawCall call;
    call.logits = p.logits.as<const float>();
    call.stride = p.logits.strides[0];
    call.vocabulary = vocabulary_;
    call.rows = p.rows;
    call.edits = p.edits;
    call.num_rows = p.num_rows;
    call.filters = p.filters;
    call.slot_tokens = p.slot_tokens;
    call.drawn = p.drawn;
    call.edited = static_cast<float*>(scratch_.edited.data());
    call.slices = static_cast<DrawSlice*>(scratch_.slices.data());
    call.bin_counts = static_cast<uint32_t*>(scratch_.bin_counts.data());
    call.bin_units = static_cast<unsigned long long*>(scratch_.bin_units.data());
    call.lists = static_cast<DrawList*>(scratch_.lists.data());
    call.candidates = static_cast<DrawCandidate*>(scratch_.candidates.data());
    call.masks = p.masks;
    call.mask_words = p.mask_words;
    call.poll = poll;
    return LaunchDraw(call, stream);
  }

 private:
  const Scratch scratch_;
  const int32_t max_rows_, vocabulary_;
};

}  // namespace

Result<std::unique_ptr<TokenDrawer>> MakeCudaTokenDrawer(int32_t max_rows, int32_t vocabulary,
                                                         Device& device) {
  const auto make = [&](size_t bytes_of_row) {
    return device.Allocate(static_cast<size_t>(max_rows) * bytes_of_row, MemoryKind::kDevice);
  };
  constexpr size_t kBinsOfRow = size_t{kDrawSlices} * kDrawBins;
  Scratch s;
  AISP_ASSIGN_OR_RETURN(s.edited, make(static_cast<size_t>(vocabulary) * sizeof(float)));
  AISP_ASSIGN_OR_RETURN(s.slices, make(kDrawSlices * sizeof(DrawSlice)));
  static_assert(kTokenEmpty == 0xffffffffu);
  AISP_RETURN_IF_ERROR(
      Check(cudaMemset(s.slices.data(), 0xff, s.slices.bytes()), "emptying slices of logits"));
  AISP_RETURN_IF_ERROR(Check(cudaStreamSynchronize(nullptr), "emptying slices of logits"));
  AISP_ASSIGN_OR_RETURN(s.bin_counts, make(kBinsOfRow * sizeof(uint32_t)));
  AISP_ASSIGN_OR_RETURN(s.bin_units, make(kBinsOfRow * sizeof(unsigned long long)));
  AISP_ASSIGN_OR_RETURN(s.lists, make(sizeof(DrawList)));
  AISP_ASSIGN_OR_RETURN(s.candidates, make(kDrawCandidates * sizeof(DrawCandidate)));
  return std::make_unique<CudaTokenDrawer>(std::move(s), max_rows, vocabulary);
}

}  // namespace aisp::cuda
