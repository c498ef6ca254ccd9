#include "model/weights.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <array>
#include <bit>
#include <cmath>
#include <cstring>

#include "common/hash.h"

namespace aisp {
namespace {

float FromE4M3(uint8_t b) {
  const int exponent = (b >> 3) & 15;
  const int mantissa = b & 7;
  if (exponent == 15 && mantissa == 7) return std::bit_cast<float>(0x7fc00000u);
  const float magnitude =
      exponent == 0 ? static_cast<float>(mantissa) * 0x1.0p-9f
                    : static_cast<float>(8 + mantissa) *
                          std::bit_cast<float>(static_cast<uint32_t>(exponent - 10 + 127) << 23);
  return (b & 0x80) != 0 ? -magnitude : magnitude;
}

// e2m1: values by code; the lowest bit is the mantissa.
constexpr std::array<float, 16> kE2M1 = {0.0f,  0.5f,  1.0f,  1.5f,  2.0f,  3.0f,  4.0f,  6.0f,
                                         -0.0f, -0.5f, -1.0f, -1.5f, -2.0f, -3.0f, -4.0f, -6.0f};

bool IsFloat(DType t) { return t == DType::kF32 || t == DType::kBF16 || t == DType::kF16; }

float HalfBits(uint16_t half) {
  const uint32_t magnitude = half & 0x7fffu;
  const float value = magnitude < 0x400u ? static_cast<float>(magnitude) * 0x1.0p-24f
                      : magnitude >= 0x7c00u
                          ? std::bit_cast<float>(0x7f800000u | (magnitude & 0x3ffu) << 13)
                          : std::bit_cast<float>((magnitude << 13) + (112u << 23));
  return (half & 0x8000u) != 0 ? -value : value;
}

float ReadElement(const TensorView& t, int64_t i) {
  const auto* p =
      static_cast<const std::byte*>(t.data) + static_cast<size_t>(i) * DTypeBytes(t.dtype);
  uint32_t word = 0;
  std::memcpy(&word, p, std::min(sizeof(word), DTypeBytes(t.dtype)));
  switch (t.dtype) {
    case DType::kBF16:
      return std::bit_cast<float>(word << 16);
    case DType::kF16:
      return HalfBits(static_cast<uint16_t>(word));
    case DType::kF8E4M3:
      return FromE4M3(static_cast<uint8_t>(word));
    default:
      return std::bit_cast<float>(word);
  }
}

tl::unexpected<Error> BadScale(const std::string& name, size_t have, int64_t out, int64_t in) {
  return InvalidArgument(fmt::format(
      "tensor \"{}\" has {} elements, which scale no [{}, {}] weight", name, have, out, in));
}

}  // namespace

void ReadFloats(const TensorView& tensor, std::span<float> out) {
  for (size_t i = 0; i < out.size(); ++i) out[i] = ReadElement(tensor, static_cast<int64_t>(i));
}

float* WeightReader::NewMatrix(int64_t out, int64_t in, TensorView* view) {
  expanded_.emplace_back(static_cast<size_t>(out * in));
  *view = TensorView::Dense(expanded_.back().data(), DType::kF32, {out, in});
  return expanded_.back().data();
}

Result<std::vector<float>> WeightReader::Floats(const std::string& name) {
  const StoredTensor* stored = checkpoint_->Find(name);
  if (stored == nullptr)
    return NotFound(fmt::format("{}: tensor \"{}\" is missing", checkpoint_->directory(), name));
  AISP_ASSIGN_OR_RETURN(const TensorView view, ViewOf(*stored, name));
  if (!IsFloat(view.dtype) && view.dtype != DType::kF8E4M3)
    return InvalidArgument(fmt::format("tensor \"{}\": {} is no scale", name, stored->dtype));
  std::vector<float> out(static_cast<size_t>(view.elements()));
  ReadFloats(view, out);
  return out;
}

uint64_t WeightReader::SeedOf(const std::string& name) const {
  return random_seed_ * 0x9E3779B97F4A7C15u + HashBytes(name).lo;
}

void WeightReader::Count(const std::string& weight) const {
  const StoredTensor* stored = on_bytes_ ? checkpoint_->Find(weight) : nullptr;
  if (stored != nullptr) on_bytes_(stored->data.size());
}

Result<TensorView> WeightReader::Random(const std::string& name, int64_t out, int64_t in) {
  if (on_bytes_) on_bytes_(static_cast<uint64_t>(out * in) * DTypeBytes(DType::kBF16));
  TensorView view = TensorView::Dense(nullptr, DType::kBF16, {out, in});
  if (ops_ == nullptr) return view;
  NewMatrix(out, in, &view);
  const float deviation = 0.6f / std::sqrt(static_cast<float>(in));
  AISP_RETURN_IF_ERROR(ops_->FillRandom(view, deviation, SeedOf(name), *stream_));
  return view;
}

Result<TensorView> WeightReader::Plain(const std::string& name, int64_t out, int64_t in) {
  if (checkpoint_ == nullptr) return Random(name, out, in);
  const std::array<int64_t, 2> shape = {out, in};
  const std::string weight = name + ".weight";
  Count(weight);
  AISP_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Get(weight, shape));
  if (!IsFloat(view.dtype)) {
    return InvalidArgument(fmt::format("{}: {} has dtype {}; f32, bf16 or f16 is expected",
                                       checkpoint_->directory(), weight, DTypeName(view.dtype)));
  }
  return view;
}

Result<TensorView> WeightReader::Vector(const std::string& name, int64_t n) {
  if (checkpoint_ == nullptr) {
    const float value = name.ends_with("bias") ? 0.0f : 1.0f;
    expanded_.emplace_back(static_cast<size_t>(n), value);
    return TensorView::Dense(expanded_.back().data(), DType::kF32, {n});
  }
  const std::array<int64_t, 1> shape = {n};
  AISP_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Get(name, shape));
  if (!IsFloat(view.dtype))
    return InvalidArgument(fmt::format("tensor \"{}\": dtype {} where a float is expected", name,
                                       DTypeName(view.dtype)));
  return view;
}

Result<TensorView> WeightReader::Matrix(const std::string& name, int64_t out, int64_t in) {
  if (checkpoint_ == nullptr) return Random(name, out, in);
  const std::string weight = name + ".weight";
  Count(weight);
  const StoredTensor* stored = checkpoint_->Find(weight);
  if (stored != nullptr && stored->dtype == "U8" && quant_.format == QuantFormat::kNvfp4)
    return ExpandNvfp4(name, out, in);
  const std::array<int64_t, 2> shape = {out, in};
  AISP_ASSIGN_OR_RETURN(const TensorView view, checkpoint_->Get(weight, shape));
  if (view.dtype == DType::kF8E4M3) return ExpandFp8(name, view);
  if (!IsFloat(view.dtype)) {
    return InvalidArgument(
        fmt::format("tensor \"{}\": dtype {} where a float is expected; quantization_config does "
                    "not say how it is stored",
                    weight, DTypeName(view.dtype)));
  }
  return view;
}

std::optional<WeightFormat> WeightReader::StoredFormat(const std::string& name) const {
  const StoredTensor* stored =
      checkpoint_ != nullptr ? checkpoint_->Find(name + ".weight") : nullptr;
  if (stored == nullptr) return std::nullopt;
  if (stored->dtype == "U8" && quant_.format == QuantFormat::kNvfp4) return WeightFormat::kNvfp4;
  if (stored->dtype != "F8_E4M3") return std::nullopt;
  const bool block = quant_.format == QuantFormat::kFp8Block && Has(name + ".weight_scale_inv");
  if (!block) return WeightFormat::kFp8;
  if (quant_.block_rows != 128 || quant_.block_cols != 128) return std::nullopt;
  return WeightFormat::kFp8Block;
}

Result<StoredMatrix> WeightReader::AsStored(const std::string& name, int64_t out, int64_t in) {
  StoredMatrix matrix;
  Count(name + ".weight");
  const WeightFormat format = *StoredFormat(name);
  if (format == WeightFormat::kNvfp4) {
    const std::array<int64_t, 2> shape = {out, in / 2};
    const std::array<int64_t, 2> scale_shape = {out, in / 16};
    AISP_ASSIGN_OR_RETURN(matrix.codes, checkpoint_->Get(name + ".weight", shape));
    AISP_ASSIGN_OR_RETURN(const TensorView groups,
                          checkpoint_->Get(name + ".weight_scale", scale_shape));
    if (groups.dtype != DType::kF8E4M3) {
      return InvalidArgument(fmt::format("tensor \"{}.weight_scale\": dtype {}; e4m3 is expected",
                                         name, DTypeName(groups.dtype)));
    }
    AISP_ASSIGN_OR_RETURN(const std::vector<float> whole, Floats(name + ".weight_scale_2"));
    if (whole.size() != 1) return BadScale(name + ".weight_scale_2", whole.size(), out, in);
    matrix.scales.group_scales = groups.data;
    matrix.scales.scale = whole[0];
    return matrix;
  }
  const std::array<int64_t, 2> shape = {out, in};
  AISP_ASSIGN_OR_RETURN(matrix.codes, checkpoint_->Get(name + ".weight", shape));
  const bool block = format == WeightFormat::kFp8Block;
  const std::string scale_name = name + (block ? ".weight_scale_inv" : ".weight_scale");
  AISP_ASSIGN_OR_RETURN(std::vector<float> scales, Floats(scale_name));
  const auto wanted = static_cast<size_t>(block ? (out + 127) / 128 * ((in + 127) / 128) : out);
  if (scales.size() != wanted && (block || scales.size() != 1))
    return BadScale(scale_name, scales.size(), out, in);
  if (scales.size() != wanted) scales.assign(wanted, scales[0]);
  expanded_.push_back(std::move(scales));
  matrix.scales.scales = expanded_.back();
  return matrix;
}

Result<TensorView> WeightReader::ExpandFp8(const std::string& name, const TensorView& weight) {
  const int64_t out = weight.rows(), in = weight.cols();
  const bool block = quant_.format == QuantFormat::kFp8Block && Has(name + ".weight_scale_inv");
  const std::string scale_name = name + (block ? ".weight_scale_inv" : ".weight_scale");
  AISP_ASSIGN_OR_RETURN(const std::vector<float> scales, Floats(scale_name));
  const int64_t block_rows = block ? quant_.block_rows : scales.size() == 1 ? out : 1;
  const int64_t block_cols = block ? quant_.block_cols : in;
  const int64_t columns = (in + block_cols - 1) / block_cols;
  if (static_cast<int64_t>(scales.size()) != (out + block_rows - 1) / block_rows * columns)
    return BadScale(scale_name, scales.size(), out, in);
  TensorView view;
  float* to = NewMatrix(out, in, &view);
  for (int64_t r = 0; r < out; ++r) {
    const float* row_scales = &scales[static_cast<size_t>(r / block_rows * columns)];
    for (int64_t c = 0; c < in; ++c)
      to[r * in + c] = ReadElement(weight, r * in + c) * row_scales[c / block_cols];
  }
  return view;
}

Result<TensorView> WeightReader::ExpandNvfp4(const std::string& name, int64_t out, int64_t in) {
  constexpr int64_t kGroup = 16;
  if (in % kGroup != 0)
    return InvalidArgument(
        fmt::format("tensor \"{}\": NVFP4 needs a multiple of 16 columns, not {}", name, in));
  const std::array<int64_t, 2> shape = {out, in / 2};
  AISP_ASSIGN_OR_RETURN(const TensorView packed, checkpoint_->Get(name + ".weight", shape));
  AISP_ASSIGN_OR_RETURN(const std::vector<float> scales, Floats(name + ".weight_scale"));
  AISP_ASSIGN_OR_RETURN(const std::vector<float> global, Floats(name + ".weight_scale_2"));
  if (static_cast<int64_t>(scales.size()) != out * in / kGroup)
    return BadScale(name + ".weight_scale", scales.size(), out, in);
  if (global.size() != 1) return BadScale(name + ".weight_scale_2", global.size(), out, in);
  TensorView view;
  float* to = NewMatrix(out, in, &view);
  const auto* bytes = static_cast<const uint8_t*>(packed.data);
  for (int64_t i = 0; i < out * in; ++i) {
    const uint8_t nibble = static_cast<uint8_t>(i % 2 == 0 ? bytes[i / 2] & 15 : bytes[i / 2] >> 4);
    to[i] = kE2M1[nibble] * scales[static_cast<size_t>(i / kGroup)] * global[0];
  }
  return view;
}

}  // namespace aisp
