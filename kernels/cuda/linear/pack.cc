// Packing of weights at load: checks, row placement, staging of host memory. The kernels are in
// pack_kernels.cu.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>

#include "kernels/cuda/cuda_error.h"
#include "kernels/cuda/linear/linear.h"
#include "kernels/cuda/linear/nvfp4_layout.h"
#include "kernels/cuda/linear/pack_kernels.h"

namespace aisp::cuda {
namespace {

constexpr size_t kAlignment = 256;
constexpr size_t kStagingBytes = size_t{64} << 20;
constexpr int64_t kBlock = 128;  // of FP8 block scales, and rows staged together

constexpr size_t Align(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }
constexpr int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }

constexpr std::string_view kPart = "packing a weight";  // in errors

struct Layout {
  int64_t n = 0;
  size_t data = 0, scales = 0, bias = 0;  // bytes, aligned
  size_t total() const { return data + scales + bias; }
};

bool IsQuantised(SourceType type) { return type == SourceType::kFp8 || type == SourceType::kNvfp4; }

Status Check(const WeightSource& source) {
  const int64_t unit = source.format == WeightFormat::kBf16 ? 8 : 16;
  if (source.parts.empty() || source.k <= 0) {
    return InvalidArgument("a weight needs parts and a positive number of columns");
  }
  if (source.k % unit != 0) {
    return Unimplemented("no kernel for weights of " + std::to_string(source.k) +
                         " columns in this format: they must be a multiple of " +
                         std::to_string(unit));
  }
  const bool fp8 = source.format == WeightFormat::kFp8 || source.format == WeightFormat::kFp8Block;
  if ((source.type == SourceType::kFp8 && !fp8) ||
      (source.type == SourceType::kNvfp4 && source.format != WeightFormat::kNvfp4)) {
    return Unimplemented("a quantised weight is packed in its own format only");
  }
  if (source.gated && (source.parts.size() != 2 || source.parts[0].rows != source.parts[1].rows)) {
    return InvalidArgument("a gated weight has two parts of equal height, gate and up");
  }
  for (const WeightPart& part : source.parts) {
    if (part.rows <= 0) return InvalidArgument("a part of a weight has no rows");
    const bool eights =
        source.gated || (source.format == WeightFormat::kFp8Block && &part != &source.parts.back());
    if (eights && part.rows % 8 != 0) {
      return Unimplemented("no kernel for gated or block-scaled parts of " +
                           std::to_string(part.rows) + " rows: they must be a multiple of 8");
    }
  }
  return {};
}

Layout LayoutOf(const WeightSource& source) {
  Layout layout;
  bool bias = false;
  for (const WeightPart& part : source.parts) {
    layout.n += part.rows;
    bias = bias || part.bias != nullptr;
  }
  const auto n = static_cast<size_t>(layout.n);
  const auto k = static_cast<size_t>(source.k);
  switch (source.format) {
    case WeightFormat::kBf16:
      layout.data = Align(n * k * 2);
      break;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Block:
      layout.data = Align(n * k);
      break;
    case WeightFormat::kNvfp4:
      layout.data = Align(
          static_cast<size_t>(DivideUp(layout.n, kNvfp4GroupRows) * Nvfp4GroupBytes(source.k)));
      break;
  }
  if (source.format == WeightFormat::kFp8Block) {
    layout.scales = Align(static_cast<size_t>(DivideUp(layout.n, 8) * DivideUp(source.k, kBlock)) *
                          sizeof(float));
  } else if (source.format != WeightFormat::kBf16) {
    layout.scales = Align(n * sizeof(float));
  }
  if (bias) layout.bias = Align(n * sizeof(float));
  return layout;
}

struct DeviceFree {
  void operator()(void* p) const { cudaFree(p); }
};

// Provides device pointers for parts in host memory, by copying to transient memory. Device memory
// is passed through.
class Staging {
 public:
  explicit Staging(cudaStream_t stream) : stream_(stream) {}

  Result<const void*> Get(const void* from, size_t bytes) {
    if (from == nullptr || bytes == 0) return nullptr;
    cudaPointerAttributes attributes = {};
    AISP_RETURN_IF_ERROR(
        CheckIn(kPart, cudaPointerGetAttributes(&attributes, from), "looking at a pointer"));
    if (attributes.type == cudaMemoryTypeDevice || attributes.type == cudaMemoryTypeManaged) {
      return from;
    }
    void* memory = nullptr;
    if (cudaMalloc(&memory, bytes) != cudaSuccess) {
      cudaGetLastError();
      return ResourceExhausted("packing a weight: no " + std::to_string(bytes) +
                               " bytes of device memory for a transient copy");
    }
    copies_[used_++].reset(memory);
    AISP_RETURN_IF_ERROR(CheckIn(
        kPart, cudaMemcpyAsync(memory, from, bytes, cudaMemcpyHostToDevice, stream_), "copying"));
    return memory;
  }
  // Frees the copies after waiting for their users. Nothing to wait for without copies.
  Status Finish() {
    AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaGetLastError(), "launching"));
    if (used_ == 0) return {};
    AISP_RETURN_IF_ERROR(CheckIn(kPart, cudaStreamSynchronize(stream_), "waiting"));
    for (auto& copy : copies_) copy.reset();
    used_ = 0;
    return {};
  }

 private:
  cudaStream_t stream_;
  std::unique_ptr<void, DeviceFree> copies_[4];
  size_t used_ = 0;
};

size_t RowBytes(SourceType type, int64_t k) {
  const auto elements = static_cast<size_t>(k);
  switch (type) {
    case SourceType::kF32:
      return elements * 4;
    case SourceType::kBf16:
    case SourceType::kF16:
      return elements * 2;
    case SourceType::kFp8:
      return elements;
    case SourceType::kNvfp4:
      return elements / 2;
  }
  return 0;
}

template <typename T>
const T* Offset(const T* p, int64_t elements) {
  return p == nullptr ? nullptr : p + elements;
}

// Packs rows [begin, begin + rows) of a part as `map` says; begin is a multiple of 128.
struct RowPack {
  const WeightSource& source;
  const WeightPart& part;
  int64_t begin;
  int64_t rows;
  const RowMap& map;
  void* to;
  float* scales;
  Staging& staging;
  cudaStream_t stream;

  Status Fp8(const SourceRows& from) {
    if (!IsQuantised(source.type)) {
      PackFp8(from, map, to, scales, stream);
      return {};
    }
    AISP_ASSIGN_OR_RETURN(
        const void* row_scales,
        staging.Get(Offset(part.scales, begin), static_cast<size_t>(rows) * sizeof(float)));
    CopyFp8(from, static_cast<const float*>(row_scales), part.scale, map, to, scales, stream);
    return {};
  }

  Status Fp8Block(const SourceRows& from) {
    if (!IsQuantised(source.type)) {
      PackFp8Block(from, map, to, scales, stream);
      return {};
    }
    const int64_t columns = DivideUp(source.k, kBlock);
    AISP_ASSIGN_OR_RETURN(
        const void* block_scales,
        staging.Get(Offset(part.scales, begin / kBlock * columns),
                    static_cast<size_t>(DivideUp(rows, kBlock) * columns) * sizeof(float)));
    if (block_scales == nullptr)
      return InvalidArgument("a block-scaled FP8 weight comes without its scales");
    CopyFp8Block(from, static_cast<const float*>(block_scales), map, to, scales, stream);
    return {};
  }

  Status Nvfp4(const SourceRows& from) {
    const int64_t group_bytes = Nvfp4GroupBytes(source.k);
    if (!IsQuantised(source.type)) {
      PackNvfp4(from, map, to, group_bytes, scales, stream);
      return {};
    }
    AISP_ASSIGN_OR_RETURN(
        const void* block_scales,
        staging.Get(Offset(static_cast<const char*>(part.block_scales), begin * source.k / 16),
                    static_cast<size_t>(rows) * (static_cast<size_t>(source.k) / 16)));
    if (block_scales == nullptr)
      return InvalidArgument("an NVFP4 weight comes without its block scales");
    CopyNvfp4(from.data, block_scales, part.scale, rows, source.k, map, to, group_bytes, scales,
              stream);
    return {};
  }

  Status Run(WeightFormat format, float* bias_to) {
    const size_t row_bytes = RowBytes(source.type, source.k);
    const auto count = static_cast<size_t>(rows);
    SourceRows from{source.type, nullptr, rows, source.k};
    AISP_ASSIGN_OR_RETURN(from.data, staging.Get(static_cast<const char*>(part.data) +
                                                     static_cast<size_t>(begin) * row_bytes,
                                                 count * row_bytes));
    switch (format) {
      case WeightFormat::kBf16:
        PackBf16(from, map, to, stream);
        break;
      case WeightFormat::kFp8:
        AISP_RETURN_IF_ERROR(Fp8(from));
        break;
      case WeightFormat::kFp8Block:
        AISP_RETURN_IF_ERROR(Fp8Block(from));
        break;
      case WeightFormat::kNvfp4:
        AISP_RETURN_IF_ERROR(Nvfp4(from));
        break;
    }
    if (part.bias != nullptr) {
      AISP_ASSIGN_OR_RETURN(const void* bias,
                            staging.Get(Offset(part.bias, begin), count * sizeof(float)));
      CopyBias(static_cast<const float*>(bias), rows, map, bias_to, stream);
    }
    return staging.Finish();
  }
};

}  // namespace

size_t PackedWeight::streamed_bytes() const {
  const auto elements = static_cast<size_t>(n) * static_cast<size_t>(k);
  switch (format) {
    case WeightFormat::kBf16:
      return elements * 2;
    case WeightFormat::kFp8:
    case WeightFormat::kFp8Block:
      return elements;
    case WeightFormat::kNvfp4:
      return elements / 2 + elements / 16;
  }
  return 0;
}

Result<size_t> PackedWeightBytes(const WeightSource& source) {
  AISP_RETURN_IF_ERROR(Check(source));
  return LayoutOf(source).total();
}

Result<PackedWeight> PackWeight(const WeightSource& source, void* memory, size_t bytes,
                                cudaStream_t stream) {
  AISP_RETURN_IF_ERROR(Check(source));
  const Layout layout = LayoutOf(source);
  if (bytes < layout.total() || reinterpret_cast<uintptr_t>(memory) % kAlignment != 0) {
    return ResourceExhausted("a packed weight needs " + std::to_string(layout.total()) +
                             " bytes aligned to 256, got " + std::to_string(bytes));
  }
  auto* const base = static_cast<char*>(memory);
  PackedWeight packed;
  packed.format = source.format;
  packed.gated = source.gated;
  packed.has_bias = layout.bias > 0;
  packed.n = layout.n;
  packed.k = source.k;
  packed.data = base;
  if (layout.scales > 0) packed.scales = reinterpret_cast<float*>(base + layout.data);
  if (layout.bias > 0) packed.bias = reinterpret_cast<float*>(base + layout.data + layout.scales);
  packed.bytes = layout.total();
  // NVFP4's padding and missing biases are zero.
  AISP_RETURN_IF_ERROR(
      CheckIn(kPart, cudaMemsetAsync(memory, 0, layout.total(), stream), "clearing memory"));

  int64_t offset = 0;
  for (size_t i = 0; i < source.parts.size(); ++i) {
    const WeightPart& part = source.parts[i];
    const auto fitting =
        static_cast<int64_t>(kStagingBytes / RowBytes(source.type, source.k)) / kBlock * kBlock;
    const int64_t step = std::max(kBlock, fitting);
    for (int64_t begin = 0; begin < part.rows; begin += step) {
      RowMap map;
      map.gated = source.gated;
      map.part = static_cast<int>(i);
      map.offset = source.gated ? begin : offset + begin;
      Staging staging(stream);
      RowPack pack{source,
                   part,
                   begin,
                   std::min(step, part.rows - begin),
                   map,
                   const_cast<void*>(packed.data),
                   const_cast<float*>(packed.scales),
                   staging,
                   stream};
      AISP_RETURN_IF_ERROR(pack.Run(packed.format, const_cast<float*>(packed.bias)));
    }
    offset += part.rows;
  }
  return packed;
}

}  // namespace aisp::cuda
