#include "kernels/cuda/weights.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "kernels/cuda/random_fill.h"
#include "kernels/cuda/rows.h"

namespace aisp::cuda {
namespace {

float FromHalf(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const float value = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1.0p-24f
                      : magnitude >= 0x7c00u
                          ? std::bit_cast<float>(0x7f800000u | (magnitude & 0x3ffu) << 13)
                          : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return (half & 0x8000u) != 0 ? -value : value;
}

}  // namespace

void ReadFloats(const TensorView& from, float* out) {
  const auto n = static_cast<size_t>(from.elements());
  if (from.dtype == DType::kF32) {
    std::memcpy(out, from.data, n * sizeof(float));
    return;
  }
  const auto* bytes = static_cast<const std::byte*>(from.data);
  for (size_t i = 0; i < n; ++i) {
    uint16_t word = 0;
    std::memcpy(&word, bytes + i * sizeof(word), sizeof(word));
    out[i] =
        from.dtype == DType::kBF16 ? std::bit_cast<float>(uint32_t{word} << 16) : FromHalf(word);
  }
}

float RandomDeviation(int64_t k) { return 0.6f / std::sqrt(static_cast<float>(k)); }

Status WeightLoader::Load(const TensorView& part, DType type, uint64_t seed, void* target) {
  if (part.data == nullptr) {
    AISP_RETURN_IF_ERROR(LaunchFillNormal(target, type, part.elements(),
                                          RandomDeviation(part.cols()), seed, stream_.handle));
    return device_.Synchronize(stream_);
  }
  void* landing = target;
  if (part.dtype != type) {
    if (staging_.bytes() < part.bytes()) {
      staging_ = {};
      AISP_ASSIGN_OR_RETURN(staging_, device_.Allocate(part.bytes(), MemoryKind::kDevice));
    }
    landing = staging_.data();
  }
  AISP_RETURN_IF_ERROR(device_.Copy(landing, part.data, part.bytes(), stream_));
  if (landing != target) {
    AISP_RETURN_IF_ERROR(
        LaunchConvert(landing, part.dtype, target, type, part.elements(), stream_.handle));
  }
  // The source may be a mapped file that is unmapped afterwards.
  return device_.Synchronize(stream_);
}

std::vector<float> WeightLoader::StackBiases(const LinearSource& source) {
  std::vector<float> values;
  const bool any = std::any_of(source.biases.begin(), source.biases.end(),
                               [](const TensorView& b) { return b.data != nullptr; });
  if (!any) return values;
  for (size_t i = 0; i < source.parts.size(); ++i) {
    const size_t at = values.size();
    values.resize(at + static_cast<size_t>(source.parts[i].rows()));
    if (source.biases[i].data != nullptr) ReadFloats(source.biases[i], values.data() + at);
  }
  return values;
}

Result<Buffer> WeightLoader::LoadBiases(const LinearSource& source) {
  const std::vector<float> values = StackBiases(source);
  if (values.empty()) return Buffer();
  const size_t bytes = values.size() * sizeof(float);
  AISP_ASSIGN_OR_RETURN(Buffer buffer, device_.Allocate(bytes, MemoryKind::kDevice));
  AISP_RETURN_IF_ERROR(device_.Copy(buffer.data(), values.data(), bytes, stream_));
  AISP_RETURN_IF_ERROR(device_.Synchronize(stream_));
  return buffer;
}

Status CheckSource(const LinearSource& source) {
  if (source.parts.empty()) return InvalidArgument("a linear weight without parts");
  if (source.compute_dtype != DType::kF32 && source.compute_dtype != DType::kBF16) {
    return Unimplemented(fmt::format("products in {} do not run here; f32 and bf16 do",
                                     DTypeName(source.compute_dtype)));
  }
  const TensorView& first = source.parts[0];
  for (const TensorView& part : source.parts) {
    if (part.rank != 2 || part.cols() != first.cols() || part.rows() <= 0 || part.cols() <= 0) {
      return InvalidArgument(
          fmt::format("parts of a linear weight have to be [out, {}]", first.cols()));
    }
  }
  if (!source.biases.empty() && source.biases.size() != source.parts.size()) {
    return InvalidArgument(fmt::format("{} biases for {} parts of a linear weight",
                                       source.biases.size(), source.parts.size()));
  }
  return {};
}

Result<std::unique_ptr<PackedLinear>> PackPlain(const LinearSource& source, Device& device,
                                                CudaStream& stream) {
  auto packed = std::make_unique<PlainWeight>();
  packed->type = source.compute_dtype;
  packed->output_type =
      source.epilogue == Epilogue::kAccumulate ? DType::kF32 : source.output_dtype;
  packed->epilogue = source.epilogue;
  packed->k = source.parts[0].cols();
  for (const TensorView& part : source.parts) packed->n += part.rows();
  const size_t row_bytes = static_cast<size_t>(packed->k) * DTypeBytes(packed->type);
  AISP_ASSIGN_OR_RETURN(packed->data, device.Allocate(static_cast<size_t>(packed->n) * row_bytes,
                                                      MemoryKind::kDevice));
  WeightLoader loader(device, stream);
  auto* to = static_cast<std::byte*>(packed->data.data());
  uint64_t seed = source.random_seed;
  for (const TensorView& part : source.parts) {
    AISP_RETURN_IF_ERROR(loader.Load(part, packed->type, seed++, to));
    to += static_cast<size_t>(part.rows()) * row_bytes;
  }
  AISP_ASSIGN_OR_RETURN(packed->bias, loader.LoadBiases(source));
  return packed;
}

Result<std::unique_ptr<PackedExperts>> PackPlainExperts(const ExpertsSource& source, Device& device,
                                                        CudaStream& stream) {
  constexpr size_t kMaxExperts = 1024;
  constexpr int32_t kMaxTopK = 32;
  if (source.experts.empty() || source.experts.size() > kMaxExperts || source.top_k < 1 ||
      source.top_k > kMaxTopK) {
    return InvalidArgument(fmt::format("{} of {} experts; up to {} of {} are possible",
                                       source.top_k, source.experts.size(), kMaxTopK, kMaxExperts));
  }
  auto packed = std::make_unique<PlainExperts>();
  packed->type = source.compute_dtype;
  packed->experts = static_cast<int32_t>(source.experts.size());
  packed->top_k = source.top_k;
  packed->intermediate = source.experts[0].gate.rows();
  packed->hidden = source.experts[0].gate.cols();
  const size_t matrix =
      static_cast<size_t>(packed->hidden * packed->intermediate) * DTypeBytes(packed->type);
  const size_t experts = source.experts.size();
  AISP_ASSIGN_OR_RETURN(packed->gate_up,
                        device.Allocate(2 * matrix * experts, MemoryKind::kDevice));
  AISP_ASSIGN_OR_RETURN(packed->down, device.Allocate(matrix * experts, MemoryKind::kDevice));
  WeightLoader loader(device, stream);
  auto* gate_up = static_cast<std::byte*>(packed->gate_up.data());
  auto* down = static_cast<std::byte*>(packed->down.data());
  uint64_t seed = source.random_seed;
  for (const ExpertsSource::Expert& e : source.experts) {
    if (e.gate.rows() != packed->intermediate || e.gate.cols() != packed->hidden ||
        e.up.rows() != packed->intermediate || e.up.cols() != packed->hidden ||
        e.down.rows() != packed->hidden || e.down.cols() != packed->intermediate) {
      return InvalidArgument("the experts of a layer differ in shape");
    }
    AISP_RETURN_IF_ERROR(loader.Load(e.gate, packed->type, seed++, gate_up));
    AISP_RETURN_IF_ERROR(loader.Load(e.up, packed->type, seed++, gate_up + matrix));
    AISP_RETURN_IF_ERROR(loader.Load(e.down, packed->type, seed++, down));
    gate_up += 2 * matrix;
    down += matrix;
  }
  return packed;
}

}  // namespace aisp::cuda
