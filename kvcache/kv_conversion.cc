#include "kvcache/kv_conversion.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>

#include "common/check.h"
#include "common/hash.h"
#include "common/prefix_hash.h"
#include "kernels/device/fp8.h"

namespace aisp {
namespace {

constexpr int32_t kMostBlockTokens = 1024;

bool Convertible(DType dtype) {
  return dtype == DType::kF32 || dtype == DType::kBF16 || dtype == DType::kF8E4M3;
}

Error Differ(const char* what, std::string_view from, std::string_view to) {
  return {Code::kFailedPrecondition,
          fmt::format("KV is not converted: {} is \"{}\" at its source and \"{}\" where it goes",
                      what, from, to)};
}

uint16_t ToBf16(float x) {
  const auto bits = std::bit_cast<uint32_t>(x);
  // A NaN whose payload is truncated would become infinite.
  if ((bits & 0x7fffffffu) > 0x7f800000u) return static_cast<uint16_t>(bits >> 16 | 0x40u);
  return static_cast<uint16_t>((bits + 0x7fffu + (bits >> 16 & 1u)) >> 16);
}

float FromBf16(uint16_t x) { return std::bit_cast<float>(static_cast<uint32_t>(x) << 16); }

void ToFloats(DType from, const std::byte* x, float* y, size_t n) {
  if (from == DType::kF32) {
    std::memcpy(y, x, n * sizeof(float));
  } else if (from == DType::kBF16) {
    for (size_t i = 0; i < n; ++i) {
      uint16_t value = 0;
      std::memcpy(&value, x + 2 * i, sizeof(value));
      y[i] = FromBf16(value);
    }
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = kFp8Values[std::to_integer<size_t>(x[i])];
  }
}

void FromFloats(const float* x, DType to, std::byte* y, size_t n) {
  if (to == DType::kF32) {
    std::memcpy(y, x, n * sizeof(float));
  } else if (to == DType::kBF16) {
    for (size_t i = 0; i < n; ++i) {
      const uint16_t value = ToBf16(x[i]);
      std::memcpy(y + 2 * i, &value, sizeof(value));
    }
  } else {
    for (size_t i = 0; i < n; ++i) y[i] = std::byte{FloatToFp8(x[i])};
  }
}

// One layer of the block at `at`. Seeded by the row's index, so that swapped rows are detected.
uint64_t LayerRowsCheck(const KvLayout& layout, const std::byte* at, int32_t layer,
                        int32_t tokens) {
  const size_t row = static_cast<size_t>(layout.head_dim) * DTypeBytes(layout.dtype);
  const auto slots = static_cast<size_t>(layout.block_tokens);
  const size_t parts = 2 * static_cast<size_t>(layout.num_kv_heads);
  uint64_t check = 0;
  for (size_t part = 0; part < parts; ++part) {
    for (size_t slot = 0; slot < static_cast<size_t>(tokens); ++slot) {
      const uint64_t place = (static_cast<uint64_t>(layer) * parts + part) * slots + slot;
      check ^= Hash64({at + (part * slots + slot) * row, row}, place + 1);
    }
  }
  return check;
}

}  // namespace

void ConvertNumbers(DType from, const std::byte* x, DType to, std::byte* y, size_t n) {
  AISP_CHECK(Convertible(from) && Convertible(to));
  if (from == to) {
    std::memcpy(y, x, n * DTypeBytes(from));
    return;
  }
  constexpr size_t kAtOnce = 256;
  std::array<float, kAtOnce> between;
  for (size_t done = 0; done < n; done += kAtOnce) {
    const size_t some = std::min(kAtOnce, n - done);
    ToFloats(from, x + done * DTypeBytes(from), between.data(), some);
    FromFloats(between.data(), to, y + done * DTypeBytes(to), some);
  }
}

Result<KvConversion> KvConversion::Plan(const KvLayout& from, const KvLayout& to) {
  const auto same = [](const char* what, int32_t a, int32_t b) -> Status {
    if (a == b) return {};
    return tl::unexpected(Differ(what, fmt::to_string(a), fmt::to_string(b)));
  };
  AISP_RETURN_IF_ERROR(same("num_layers", from.num_layers, to.num_layers));
  AISP_RETURN_IF_ERROR(same("num_kv_heads", from.num_kv_heads, to.num_kv_heads));
  AISP_RETURN_IF_ERROR(same("head_dim", from.head_dim, to.head_dim));
  const auto sized = [](int32_t tokens) {
    return tokens > 0 && tokens <= kMostBlockTokens && tokens % kHashUnitTokens == 0;
  };
  if (from.block_tokens != to.block_tokens && !(sized(from.block_tokens) && sized(to.block_tokens)))
    return tl::unexpected(
        Differ("block_tokens", fmt::to_string(from.block_tokens), fmt::to_string(to.block_tokens)));
  if (from.dtype != to.dtype && !(Convertible(from.dtype) && Convertible(to.dtype)))
    return tl::unexpected(Differ("dtype", DTypeName(from.dtype), DTypeName(to.dtype)));
  KvConversion plan;
  plan.from_ = from;
  plan.to_ = to;
  return plan;
}

std::string KvConversion::ToString() const {
  if (whole()) return "";
  return fmt::format("{} in blocks of {} to {} in blocks of {}", DTypeName(from_.dtype),
                     from_.block_tokens, DTypeName(to_.dtype), to_.block_tokens);
}

void KvConversion::MakeBlock(const std::byte* pool, int32_t layer, std::span<const BlockId> source,
                             int32_t begin, int32_t end, int32_t source_first,
                             std::byte* out) const {
  const size_t dim = static_cast<size_t>(from_.head_dim);
  const size_t row_in = dim * DTypeBytes(from_.dtype);
  const size_t row_out = dim * DTypeBytes(to_.dtype);
  const auto slots_in = static_cast<size_t>(from_.block_tokens);
  const auto slots_out = static_cast<size_t>(to_.block_tokens);
  const size_t parts = 2 * static_cast<size_t>(from_.num_kv_heads);
  AISP_CHECK(begin % to_.block_tokens == 0 && end - begin <= to_.block_tokens);
  for (int32_t token = begin; token < end;) {
    const int32_t next = (token / from_.block_tokens + 1) * from_.block_tokens;
    const auto rows = static_cast<size_t>(std::min(next, end) - token);
    const std::byte* block =
        pool + from_.Offset(
                   layer, source[static_cast<size_t>((token - source_first) / from_.block_tokens)]);
    const auto slot_in = static_cast<size_t>(token % from_.block_tokens);
    const auto slot_out = static_cast<size_t>(token - begin);
    for (size_t part = 0; part < parts; ++part) {
      ConvertNumbers(from_.dtype, block + (part * slots_in + slot_in) * row_in, to_.dtype,
                     out + (part * slots_out + slot_out) * row_out, rows * dim);
    }
    token += static_cast<int32_t>(rows);
  }
  const auto filled = static_cast<size_t>(end - begin);
  for (size_t part = 0; part < parts && filled < slots_out; ++part) {
    std::memset(out + (part * slots_out + filled) * row_out, 0, (slots_out - filled) * row_out);
  }
}

std::vector<uint64_t> KvConversion::Checks(const std::byte* pool, std::span<const BlockId> source,
                                           int32_t begin, int32_t end) const {
  std::vector<uint64_t> checks;
  std::vector<std::byte> made(to_.LayerBlockBytes());
  for (int32_t at = begin; at < end; at += to_.block_tokens) {
    const int32_t until = std::min(end, at + to_.block_tokens);
    uint64_t check = 0;
    for (int32_t layer = 0; layer < to_.num_layers; ++layer) {
      MakeBlock(pool, layer, source, at, until, 0, made.data());
      check ^= LayerRowsCheck(to_, made.data(), layer, until - at);
    }
    checks.push_back(check);
  }
  return checks;
}

uint64_t RowsCheck(const KvLayout& layout, const std::byte* pool, BlockId block, int32_t tokens) {
  uint64_t check = 0;
  for (int32_t layer = 0; layer < layout.num_layers; ++layer)
    check ^= LayerRowsCheck(layout, pool + layout.Offset(layer, block), layer, tokens);
  return check;
}

}  // namespace aisp
