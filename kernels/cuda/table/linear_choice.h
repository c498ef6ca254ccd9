// Which kernel computes a linear layer of so many rows, and which layers one launch can compute
// together: pure functions of weight, rows, device and what was measured. kernel_table.cc has them
// as rows; linear/ launches what they say.
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

// How a product is stored; numbered as Store (linear/linear.h).
enum class StoreForm : uint8_t { kBf16, kF32, kAccumulateF32, kSiluMulBf16 };
StoreForm StoreOf(const LinearTraits& weight);

// Everything that a choice reads.
struct ChoiceFacts {
  const DeviceFacts* device = nullptr;
  const TuningProfile* profile = nullptr;
  // Whether cuBLASLt has an algorithm for such a product. Null: for widths that are multiples of 8.
  std::function<bool(const LinearTraits& weight, int32_t rows, bool fp8_rows)> lt_has;
  // Whether a chain takes the layer with its adapters. Null: it does not.
  std::function<bool(const AdaptedLinear& adapted)> chain_adapts;
};

enum class LinearKernel : uint8_t {
  kOneToken,
  kStream,        // few rows
  kGemm,          // many rows: our own
  kCublasLt,      // many rows: the library's
  kStreamPieces,  // few rows at a time, where no kernel takes many of this width
  kPlain,
  kBlockScaled,
};

struct LinearChoice {
  LinearKernel kernel = LinearKernel::kPlain;
  int instance = -1;    // kStream: of StreamInstances(); kGemm: of GemmInstances()
  bool rounds = false;  // its rows are rounded to e4m3 first
  int32_t rows = 0;     // that were asked for
};

// More rows are rounded up, so that few sizes need a choice of algorithm.
constexpr int64_t PaddedRows(int64_t rows) {
  const int64_t step = rows <= 64 ? 1 : rows <= 256 ? 32 : 128;
  return (rows + step - 1) / step * step;
}

// Whether a layer rounds its bf16 rows to e4m3 in calls of so many rows; heads never do.
bool RoundsRows(const LinearTraits& weight, int32_t rows, const DeviceFacts& device);
// Of a layer alone, on bf16 rows or, with `fp8_rows`, on e4m3 ones. `rows` > 0.
LinearChoice ChooseLinear(const LinearTraits& weight, int32_t rows, bool fp8_rows,
                          const ChoiceFacts& facts);
// Up to this many rows run in the kernels for few rows, unless others were measured to be faster.
int32_t OwnRows(aisp::WeightFormat format, bool fp8_rows);
// Rows of bf16 from which cuBLASLt's best algorithm may be faster than those.
bool MayPreferLt(aisp::WeightFormat format, int32_t rows);
// Of StreamInstances(); -1: none.
int FindStream(aisp::WeightFormat format, bool fp8_rows, int32_t rows);
int FindChain(aisp::WeightFormat format, int32_t rows);

// ---- many rows ----

constexpr int kLt = -1;
// Of GemmInstances(), or kLt.
int ChooseManyRows(const LinearTraits& weight, int32_t rows, bool fp8_rows,
                   const ChoiceFacts& facts);
bool LtSupports(const LinearTraits& weight, bool fp8_rows);
bool GemmSupports(const LinearTraits& weight, bool fp8_rows);
bool SupportsManyRows(const LinearTraits& weight, bool fp8_rows);
// cuBLASLt needs the weight widened to bf16 first.
bool NeedsExpansion(aisp::WeightFormat format, bool fp8_rows);
std::vector<int> GemmInstancesOf(aisp::WeightFormat format, bool fp8_rows);
int ExpectedGemm(const LinearTraits& weight, int32_t rows, bool fp8_rows, int multiprocessors);
// Parts of K that CTAs of their own multiply, where tiles alone would leave most of them idle.
int GemmSplits(const LinearTraits& weight, int32_t rows, int instance, int multiprocessors);
// Microseconds, roughly.
double GemmEstimate(const LinearTraits& weight, int32_t rows, int instance, int multiprocessors);

// ---- several layers in one launch ----

// A layer of a chain. The first has no norm in front of it; each other one reads what the one
// before it stored or, with a norm, the norm of what that one added to.
struct ChainLink {
  LinearTraits weight;
  bool normed = false;
};
// How many of the first layers fit one launch; 0: not even the first.
size_t OneTokenChain(std::span<const ChainLink> links, int32_t rows);
size_t FewTokensChain(std::span<const ChainLink> links, int32_t rows);
size_t StreamChain(std::span<const ChainLink> links, int32_t rows, int multiprocessors);
// Stages of weights beside the token in shared memory, and the token's bytes there for each warp.
int OneTokenRing(std::span<const ChainLink> links);
int OneTokenInputBytes(std::span<const ChainLink> links);
// Slots of a layer's input.
int64_t OneTokenSlots(const ChainLink& link);
int64_t FewTokensSlots(const ChainLink& link);

}  // namespace aisp::cuda
