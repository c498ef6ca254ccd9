#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <numbers>

#include "common/check.h"
#include "common/random.h"
#include "kernels/cpu/convert.h"
#include "kernels/cpu/cpu_ops_impl.h"
#include "kernels/device/fp8.h"

namespace aisp {

Result<std::unique_ptr<Ops>> MakeCpuOps(const CpuOpsOptions& options) {
  return CpuOps::Create(options);
}

Result<std::unique_ptr<CpuOps>> CpuOps::Create(const CpuOpsOptions& options) {
  if (options.threads < 1 || options.threads > 256) {
    return InvalidArgument(
        fmt::format("{} compute threads; 1 to 256 are possible", options.threads));
  }
  std::unique_ptr<CpuOps> ops(new CpuOps(options.threads));
  ops->attend_scratch_.resize(static_cast<size_t>(options.threads));
  return ops;
}

std::string CpuOps::Describe() const {
  return fmt::format("{} row kernels; {}; {} thread{}", kernels_.isa, linear_.Describe(),
                     pool_.threads(), pool_.threads() == 1 ? "" : "s");
}

// bf16 halves the bytes, which helps if a step is bound by reading weights. Small models stay in
// the cache, where f32 costs little and gives the same tokens on CPUs with and without bf16
// products.
DType CpuOps::PreferredComputeDType(DType checkpoint, int64_t elements) const {
  constexpr int64_t kLargeElements = int64_t{64} << 20;
  return checkpoint == DType::kBF16 && elements > kLargeElements && linear_.SupportsBf16()
             ? DType::kBF16
             : DType::kF32;
}

Result<std::unique_ptr<PackedLinear>> CpuOps::PackLinear(const LinearSource& source) {
  return linear_.Pack(source);
}

Status CpuOps::FillRandom(const TensorView& target, float deviation, uint64_t seed, Stream&) {
  const int64_t n = target.elements();
  constexpr int64_t kChunk = 4096;
  pool_.For((n + kChunk - 1) / kChunk, [&](int64_t chunk, int) {
    std::array<float, kChunk> values;
    const int64_t begin = chunk * kChunk, count = std::min(kChunk, n - begin);
    SplitMix64 random(seed ^ (static_cast<uint64_t>(chunk) * 0x9E3779B97F4A7C15u));
    for (float& v : values) {
      // Box and Muller, "A Note on the Generation of Random Normal Deviates", 1958.
      const double radius = std::sqrt(-2 * std::log(1 - random.Uniform()));
      v = deviation *
          static_cast<float>(radius * std::cos(2 * std::numbers::pi * random.Uniform()));
    }
    ConvertElements(TensorView::Dense(values.data(), DType::kF32, {kChunk}), 0, count, target.dtype,
                    static_cast<std::byte*>(target.data) +
                        static_cast<size_t>(begin) * DTypeBytes(target.dtype));
  });
  return {};
}

Status CpuOps::Embedding(const EmbeddingParams& p, Stream& stream) {
  const int64_t dim = p.table.cols();
  ForRows(p.rows, [&](int64_t row) {
    int32_t token = p.tokens[row];
    if (token < 0) token = p.slot_tokens[p.slot_of_row[row]];
    AISP_CHECK(token >= 0 && token < p.table.rows());
    ConvertElements(p.table, token * dim, dim, DType::kF32, p.hidden.as<float>() + row * dim);
  });
  return p.norm.x.data != nullptr ? RmsNorm(p.norm, stream) : Status{};
}

Status CpuOps::Linear(const LinearParams& p, Stream&) {
  if (p.rows == 0) return {};
  AISP_CHECK(p.x.dtype == p.weight->input_dtype() && p.x.cols() == p.weight->in_features());
  AISP_CHECK(p.y.dtype == DType::kF32 && p.y.cols() == p.weight->out_features());
  AISP_CHECK(p.x.rows() >= p.rows && p.y.rows() >= p.rows);
  linear_.Run(*p.weight, p.x.data, p.y.as<float>(), p.rows);
  return {};
}

Status CpuOps::RmsNorm(const RmsNormParams& p, Stream&) {
  const int64_t dim = p.weight.shape[0];
  AISP_CHECK(p.x.cols() >= dim && p.y.cols() == dim);
  const bool bf16 = p.y.dtype == DType::kBF16;
  ForRows(p.rows, [&](int64_t row) {
    const int64_t from = p.row_indices != nullptr ? p.row_indices[row] : row;
    auto* y = static_cast<std::byte*>(p.y.data) +
              static_cast<size_t>(row * p.y.strides[0]) * DTypeBytes(p.y.dtype);
    kernels_.rms_norm(p.x.as<float>() + from * p.x.strides[0], p.weight.as<float>(), y, bf16, dim,
                      p.epsilon);
  });
  return {};
}

void StoreKv(const RowKernels& kernels, const PagedKvView& kv, int32_t kv_slot, int32_t head,
             bool value, const float* from, int64_t n) {
  const auto block = static_cast<size_t>(kv_slot / kv.block_tokens);
  const auto slot = static_cast<size_t>(kv_slot % kv.block_tokens);
  std::byte* to = static_cast<std::byte*>(kv.layer) + block * kv.block_bytes() +
                  static_cast<size_t>(head) * kv.head_bytes() + (value ? kv.part_bytes() : 0) +
                  slot * static_cast<size_t>(kv.head_dim) * DTypeBytes(kv.dtype);
  if (kv.dtype == DType::kBF16) {
    kernels.to_bf16(from, reinterpret_cast<uint16_t*>(to), n);
  } else if (kv.dtype == DType::kF8E4M3) {
    for (int64_t i = 0; i < n; ++i) to[i] = std::byte{FloatToFp8(from[i])};
  } else {
    std::memcpy(to, from, static_cast<size_t>(n) * sizeof(float));
  }
}

Status CpuOps::RopeAppend(const RopeAppendParams& p, Stream&) {
  const int64_t dim = p.kv.head_dim;
  const int64_t half = dim / 2;
  AISP_CHECK(p.qkv.cols() == (p.num_heads + 2 * p.kv.num_kv_heads) * dim &&
             p.cos_sin.cols() == dim);
  ForRows(p.batch.rows, [&](int64_t row) {
    float* x = p.qkv.as<float>() + row * p.qkv.strides[0];
    const int32_t position = p.batch.positions[row];
    AISP_CHECK(position >= 0 && position < p.cos_sin.rows());
    const float* cosine = p.cos_sin.as<float>() + position * dim;
    const auto prepare = [&](float* head, const TensorView& norm) {
      if (norm.data != nullptr)
        kernels_.rms_norm(head, norm.as<float>(), head, false, dim, p.norm_epsilon);
      kernels_.rotate_half(head, cosine, cosine + half, half);
    };
    for (int32_t h = 0; h < p.num_heads; ++h) prepare(x + h * dim, p.q_norm);
    float* k = x + p.num_heads * dim;
    float* v = k + p.kv.num_kv_heads * dim;
    for (int32_t h = 0; h < p.kv.num_kv_heads; ++h) {
      prepare(k + h * dim, p.k_norm);
      StoreKv(kernels_, p.kv, p.batch.kv_slots[row], h, false, k + h * dim, dim);
      StoreKv(kernels_, p.kv, p.batch.kv_slots[row], h, true, v + h * dim, dim);
    }
  });
  return {};
}

Status CpuOps::SiluMul(const SiluMulParams& p, Stream&) {
  const int64_t dim = p.y.cols();
  AISP_CHECK(p.x.cols() == 2 * dim);
  const size_t row_bytes = static_cast<size_t>(dim) * DTypeBytes(p.y.dtype);
  ForRows(p.rows, [&](int64_t row) {
    kernels_.silu_mul(p.x.as<float>() + row * 2 * dim,
                      static_cast<std::byte*>(p.y.data) + static_cast<size_t>(row) * row_bytes,
                      p.y.dtype == DType::kBF16, dim);
  });
  return {};
}

Status CpuOps::SiluAdd(const SiluAddParams& p, int32_t rows) {
  const int64_t dim = p.y.cols();
  ForRows(rows, [&](int64_t row) {
    const float* const x = p.x.as<float>() + row * dim;
    const float* const added = p.added.as<float>() + row * dim;
    float* const y = p.y.as<float>() + row * dim;
    for (int64_t i = 0; i < dim; ++i) y[i] = x[i] + added[i] / (1 + std::exp(-added[i]));
    if (p.rounded.data != nullptr) kernels_.to_bf16(y, p.rounded.as<uint16_t>() + row * dim, dim);
  });
  return {};
}

}  // namespace aisp
