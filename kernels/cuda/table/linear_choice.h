// Chooses the kernel for a linear layer with a given number of rows, and the layers that one launch
// can compute together: pure functions of weight, rows, device and measurements. kernel_table.cc
// uses them in its rows; linear/ launches the result.
//
// Any thread.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "kernels/cuda/table/facts.h"
#include "kernels/cuda/table/instances.h"
#include "kernels/params.h"

namespace aisp::cuda {

// How a product is stored; numbered like Store (linear/linear.h).
enum class StoreForm : uint8_t { kBf16, kF32, kAccumulateF32, kSiluMulBf16 };
StoreForm StoreOf(const LinearTraits& weight);

// Everything that a choice depends on.
struct ChoiceFacts {
  const DeviceFacts* device = nullptr;
  const TuningProfile* profile = nullptr;
  // Whether cuBLASLt has an algorithm for a product. Null: assumed for widths that are multiples of
  // 8.
  std::function<bool(const LinearTraits& weight, int32_t rows, bool fp8_rows)> lt_has;
  // Whether a chain supports the layer with its adapters. Null: never.
  std::function<bool(const AdaptedLinear& adapted)> chain_adapts;
};

enum class LinearKernel : uint8_t {
  kOneToken,
  kStream,        // few rows
  kGemm,          // many rows: our kernels
  kCublasLt,      // many rows: cuBLASLt
  kStreamPieces,  // few rows at a time, for widths without a many-row kernel
  kPlain,
  kBlockScaled,
};

struct LinearChoice {
  LinearKernel kernel = LinearKernel::kPlain;
  int instance = -1;    // kStream: index into StreamInstances(); kGemm: into GemmInstances()
  bool rounds = false;  // its rows are rounded to e4m3 first
  int32_t rows = 0;     // as requested
};

// Larger row counts are rounded up, so that few sizes need an algorithm.
constexpr int64_t PaddedRows(int64_t rows) {
  const int64_t step = rows <= 64 ? 1 : rows <= 256 ? 32 : 128;
  return (rows + step - 1) / step * step;
}

// Whether a layer rounds its bf16 rows to e4m3 for this number of rows; heads never do.
bool RoundsRows(const LinearTraits& weight, int32_t rows, const DeviceFacts& device);
// For a single layer with bf16 rows, which it rounds to e4m3 first if it `rounds`, or, with
// `fp8_rows`, e4m3 rows. `rows` > 0.
LinearChoice ChooseLinear(const LinearTraits& weight, int32_t rows, bool fp8_rows, bool rounds,
                          const ChoiceFacts& facts);
// Up to this many rows use the few-row kernels unless others were measured to be faster.
int32_t OwnRows(aisp::WeightFormat format, bool fp8_rows);
// Whether cuBLASLt's best algorithm may be faster than those for so many bf16 rows.
bool MayPreferLt(aisp::WeightFormat format, int32_t rows);
// Index into StreamInstances(); -1: none.
int FindStream(aisp::WeightFormat format, bool fp8_rows, int32_t rows);
int FindChain(aisp::WeightFormat format, int32_t rows);

// ---- many rows ----

constexpr int kLt = -1;
// Index into GemmInstances(), or kLt.
int ChooseManyRows(const LinearTraits& weight, int32_t rows, bool fp8_rows,
                   const ChoiceFacts& facts);
bool LtSupports(const LinearTraits& weight, bool fp8_rows);
bool GemmSupports(const LinearTraits& weight, bool fp8_rows);
bool SupportsManyRows(const LinearTraits& weight, bool fp8_rows);
// Whether cuBLASLt needs the weight converted to bf16 first.
bool NeedsExpansion(aisp::WeightFormat format, bool fp8_rows);
std::vector<int> GemmInstancesOf(aisp::WeightFormat format, bool fp8_rows);
int ExpectedGemm(const LinearTraits& weight, int32_t rows, bool fp8_rows, int multiprocessors);
// Number of K parts for separate CTAs, if tiles alone would leave most CTAs idle.
int GemmSplits(const LinearTraits& weight, int32_t rows, int instance, int multiprocessors);
// Estimated microseconds; infinity for more rows than the instance is for.
double GemmEstimate(const LinearTraits& weight, int32_t rows, int instance, int multiprocessors);

// ---- several layers in one launch ----

// A layer of a chain. The first has no norm in front; each other one reads the previous one's
// output or, with a norm, the norm of what the previous one added to.
struct ChainLink {
  LinearTraits weight;
  bool normed = false;
};
// How many of the first layers fit in one launch; 0: not even the first.
size_t OneTokenChain(std::span<const ChainLink> links, int32_t rows);
size_t FewTokensChain(std::span<const ChainLink> links, int32_t rows);
size_t StreamChain(std::span<const ChainLink> links, int32_t rows, int multiprocessors);
// Weight stages besides the token in shared memory / the token's bytes there per warp.
int OneTokenRing(std::span<const ChainLink> links);
int OneTokenInputBytes(std::span<const ChainLink> links);
// Number of slots for a layer's input.
int64_t OneTokenSlots(const ChainLink& link);
int64_t FewTokensSlots(const ChainLink& link);

}  // namespace aisp::cuda
