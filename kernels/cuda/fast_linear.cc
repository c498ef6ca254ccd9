#include "kernels/cuda/fast_linear.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/weights.h"

namespace aisp::cuda {
namespace {

aisp::cuda::WeightFormat FormatOf(aisp::WeightFormat format) {
  switch (format) {
    case aisp::WeightFormat::kFp8:
      return WeightFormat::kFp8;
    case aisp::WeightFormat::kFp8Block:
      return WeightFormat::kFp8Block;
    case aisp::WeightFormat::kNvfp4:
      return WeightFormat::kNvfp4;
    case aisp::WeightFormat::kCompute:
      break;
  }
  return WeightFormat::kBf16;
}

SourceType SourceOf(const LinearSource& source) {
  if (!source.scales.empty()) {
    return source.format == aisp::WeightFormat::kNvfp4 ? SourceType::kNvfp4 : SourceType::kFp8;
  }
  if (source.parts[0].data == nullptr) return SourceType::kBf16;
  switch (source.parts[0].dtype) {
    case DType::kBF16:
      return SourceType::kBf16;
    case DType::kF16:
      return SourceType::kF16;
    default:
      return SourceType::kF32;
  }
}

Store StoreOf(const LinearSource& source) {
  switch (source.epilogue) {
    case Epilogue::kAccumulate:
      return Store::kAccumulateF32;
    case Epilogue::kGatedSilu:
      return Store::kSiluMulBf16;
    case Epilogue::kStore:
      break;
  }
  return source.output_dtype == DType::kBF16 ? Store::kBf16 : Store::kF32;
}

int64_t InFeatures(const LinearSource& source) {
  const int64_t cols = source.parts[0].cols();
  return SourceOf(source) == SourceType::kNvfp4 ? 2 * cols : cols;
}

}  // namespace

bool FastLinear::Serves(const LinearSource& source) {
  if (source.compute_dtype != DType::kBF16) return false;
  const int64_t multiple = source.format == aisp::WeightFormat::kCompute ? 8 : 16;
  const bool uniform =
      std::all_of(source.parts.begin(), source.parts.end(),
                  [&](const TensorView& part) { return part.dtype == source.parts[0].dtype; });
  return uniform && InFeatures(source) % multiple == 0;
}

Result<std::unique_ptr<FastLinear>> FastLinear::Create(const LinearOptions& options, Device& device,
                                                       CudaStream& load_stream) {
  LinearOptions padded = options;
  padded.max_rows = static_cast<int32_t>(PaddedRows(options.max_rows));
  std::unique_ptr<FastLinear> linear(new FastLinear(device, load_stream, padded.max_rows));
  AISP_ASSIGN_OR_RETURN(linear->kernels_, LinearKernels::Create(padded));
  return linear;
}

Status FastLinear::GrowWorkspace(size_t bytes) {
  if (bytes <= workspace_.bytes()) return {};
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  // Graphs captured for an earlier model still use theirs.
  if (stepped_ && workspace_) outgrown_.push_back(std::move(workspace_));
  workspace_ = {};
  AISP_ASSIGN_OR_RETURN(workspace_, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(
      kernels_->SetWorkspace(workspace_.data(), workspace_.bytes(), stream_.handle));
  return device_.Synchronize(stream_);
}

// A part in device memory: random, or a copy of a large host part in `landing`, of which `used`
// bytes are taken. PackWeight copies small ones.
Status FastLinear::PlacePart(const LinearSource& source, size_t i, std::byte* landing, size_t* used,
                             std::vector<Buffer>* random, WeightPart* part) {
  const TensorView& view = source.parts[i];
  if (view.data != nullptr) {
    if (landing == nullptr) return {};
    AISP_RETURN_IF_ERROR(device_.Copy(landing + *used, view.data, view.bytes(), stream_));
    part->data = landing + *used;
    *used += DeviceArena::Padded(view.bytes());
    return {};
  }
  AISP_ASSIGN_OR_RETURN(
      Buffer made, device_.Allocate(static_cast<size_t>(view.elements()) * 2, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(LaunchFillNormal(made.data(), DType::kBF16, view.elements(),
                                        RandomDeviation(view.cols()), source.random_seed + i,
                                        stream_.handle));
  part->data = made.data();
  random->push_back(std::move(made));
  return {};
}

// Staging memory for large parts: shared by all weights, or `own` for a part that is too large for
// it.
Result<std::byte*> FastLinear::Landing(const LinearSource& source, Buffer* own) {
  constexpr size_t kLeast = size_t{4} << 20, kShared = size_t{256} << 20;
  size_t bytes = 0;
  for (const TensorView& view : source.parts) {
    if (view.data != nullptr) bytes += DeviceArena::Padded(view.bytes());
  }
  if (bytes < kLeast) return nullptr;
  Buffer& buffer = bytes <= kShared ? landing_ : *own;
  if (buffer.bytes() < bytes) {
    AISP_ASSIGN_OR_RETURN(buffer, device_.Allocate(std::max(bytes, kShared), MemoryKind::kDevice));
  }
  return static_cast<std::byte*>(buffer.data());
}

Result<std::unique_ptr<FastWeight>> FastLinear::Pack(const LinearSource& source) {
  const std::vector<float> biases = WeightLoader::StackBiases(source);
  std::vector<WeightPart> parts(source.parts.size());
  std::vector<Buffer> random;  // kept until the weight is packed
  Buffer own_landing;
  AISP_ASSIGN_OR_RETURN(std::byte* const landing, Landing(source, &own_landing));
  size_t used = 0;
  int64_t row = 0;
  for (size_t i = 0; i < parts.size(); ++i) {
    WeightPart& part = parts[i];
    part.data = source.parts[i].data;
    part.rows = source.parts[i].rows();
    if (!biases.empty()) part.bias = biases.data() + row;
    row += part.rows;
    if (!source.scales.empty()) {
      const PartScales& scales = source.scales[i];
      part.scales = scales.scales.empty() ? nullptr : scales.scales.data();
      part.scale = scales.scale;
      part.block_scales = scales.group_scales;
    }
    AISP_RETURN_IF_ERROR(PlacePart(source, i, landing, &used, &random, &part));
  }
  WeightSource packing;
  packing.type = SourceOf(source);
  packing.parts = parts;
  packing.k = InFeatures(source);
  packing.gated = source.epilogue == Epilogue::kGatedSilu;
  packing.format = FormatOf(source.format);
  auto packed = std::make_unique<FastWeight>();
  packed->store = StoreOf(source);
  AISP_ASSIGN_OR_RETURN(const size_t bytes, PackedWeightBytes(packing));
  AISP_ASSIGN_OR_RETURN(packed->memory, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(packed->weight,
                        PackWeight(packing, packed->memory.data(), bytes, stream_.handle));
  // The copy from the shared staging memory may still run while the next weight is read.
  pending_ = true;
  if (!random.empty() || own_landing) AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  AISP_RETURN_IF_ERROR(GrowWorkspace(kernels_->WorkspaceBytes(packed->weight)));
  AISP_RETURN_IF_ERROR(Tune(*packed));
  return packed;
}

Status FastLinear::FinishPacking() {
  pending_ = false;
  stepped_ = true;
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  landing_ = {};
  return {};
}

// Lets linear/ measure its candidates where the choice is open: decode batches and short prefill
// steps. Longer ones use its own kernels unless a similar size was measured otherwise. Once per
// shape.
Status FastLinear::Tune(const FastWeight& weight) {
  constexpr int64_t kWide = 65536;  // outputs of a vocabulary head, which has no prefill rows
  const PackedWeight& w = weight.weight;
  if (!tuned_.emplace(w.n, w.k, weight.store, w.format).second) return {};
  std::vector<int32_t> sizes;
  for (int32_t rows = 48; rows <= std::min(256, max_rows_); rows = rows == 48 ? 64 : rows + 32)
    sizes.push_back(rows);
  for (int32_t rows = 512; w.n < kWide && rows <= std::min(1024, max_rows_); rows *= 2) {
    sizes.push_back(rows);
  }
  if (sizes.empty()) return {};
  const auto most = static_cast<size_t>(sizes.back());
  const size_t x_count = most * static_cast<size_t>(w.k);
  AISP_ASSIGN_OR_RETURN(const Buffer x, device_.Allocate(x_count * 2, MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(const Buffer y,
                        device_.Allocate(most * static_cast<size_t>(weight.out_features()) *
                                             DTypeBytes(weight.output_dtype()),
                                         MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(LaunchFillNormal(x.data(), DType::kBF16, static_cast<int64_t>(x_count), 1.0f,
                                        1, stream_.handle));
  for (const int32_t rows : sizes) {
    LinearCall call;
    call.weight = &w;
    call.x = x.data();
    call.y = y.data();
    call.store = weight.store;
    call.rows = rows;
    AISP_RETURN_IF_ERROR(kernels_->Prepare(call, stream_.handle));
  }
  return device_.Synchronize(stream_);
}

LinearCall FastLinear::CallOf(const FastWeight& weight, const LinearParams& p, int32_t rows) {
  LinearCall call;
  call.weight = &weight.weight;
  call.x = p.x.data;
  call.y = p.y.data;
  call.store = weight.store;
  call.rows = rows;
  return call;
}

}  // namespace aisp::cuda
