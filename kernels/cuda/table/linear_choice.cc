#include "kernels/cuda/table/linear_choice.h"

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>

#include "kernels/cuda/token_slots.h"

namespace aisp::cuda {
namespace {

// Measured (docs/performance.md). From these rows on our kernels are expected to be faster where
// nothing similar was measured.
constexpr int32_t kTunedLtRows = 32;
constexpr int32_t kOwnGemmRows = 640;
constexpr int32_t kOwnGatedGemmRows = 256;
constexpr double kNear = 1.42;  // ratio of row counts
// Parameters of the estimate: the clock under this load, and a launch's cost besides its stages.
constexpr double kCyclesPerUs = 1550.0;
constexpr double kLaunchUs = 4.0;
constexpr double kExchangeUs = 3.0;  // for exchanging sums of K parts
constexpr int64_t kLeastSplitStages = 8;
constexpr int32_t kSplitTokens = 128;  // per split tile, at most

constexpr size_t kMostChainLinks = 6;
constexpr size_t kSquareBytes = size_t{512} << 10;  // chain.cc: per layer
constexpr int64_t kHeadWidth = 65536;               // linear.h: kHeadRows
// Shared memory of a CTA for one token: for several layers small enough for decode attention's CTA
// beside it, for one layer (except a head) small enough for the next launch's.
constexpr int kSharedOfChain = 174 << 10;
constexpr int kSharedOfOne = 112 << 10;
constexpr int kMostRing = 24;
constexpr int kLeastRing = 4;

int64_t DivideUp(int64_t a, int64_t b) { return (a + b - 1) / b; }
bool IsFp8(aisp::WeightFormat f) {
  return f == aisp::WeightFormat::kFp8 || f == aisp::WeightFormat::kFp8Block;
}
bool IsF32(const LinearTraits& w) { return w.output == DType::kF32; }

int Find(std::span<const StreamInstance> instances, aisp::WeightFormat format, bool fp8_rows,
         int32_t rows) {
  for (size_t i = 0; i < instances.size(); ++i) {
    const StreamInstance& instance = instances[i];
    if (instance.format == format && instance.fp8_rows == fp8_rows && instance.tokens >= rows)
      return static_cast<int>(i);
  }
  return -1;
}

// Tensor cores take 4 cycles per token; converting weights and FP8 additions do not depend on
// tokens. FP8 rows: measured on an H200.
double StageCycles(const GemmInstance& g) {
  const bool fp8 = IsFp8(g.format);
  if (fp8 && !g.fp8_rows) return 3.2 * g.tokens + 260;
  if (g.format == aisp::WeightFormat::kFp8)
    return (g.tokens <= 128 ? 4.4 : g.tokens == 192 ? 5.1 : 4.6) * g.tokens;
  if (g.format == aisp::WeightFormat::kFp8Block) return 4.2 * g.tokens + 290;
  if (g.format == aisp::WeightFormat::kNvfp4) return 2.5 * g.tokens + 430;
  return 4.0 * g.tokens + 15;
}

LinearChoice ChooseFast(const LinearTraits& w, int32_t rows, bool fp8_rows, bool rounds,
                        const ChoiceFacts& facts) {
  LinearChoice choice;
  choice.rows = rows;
  const ChainLink link{w, false};
  if (!fp8_rows && !rounds && OneTokenChain(std::span(&link, 1), choice.rows) == 1) {
    choice.kernel = LinearKernel::kOneToken;
    return choice;
  }
  if (!rounds && choice.rows <= OwnRows(w.format, fp8_rows)) {
    const std::map<int32_t, int>* known = facts.profile->Of(TuningProfile::KeyOf(w, fp8_rows));
    const bool prefers_lt =
        MayPreferLt(w.format, choice.rows) && known != nullptr && known->contains(choice.rows);
    if (!prefers_lt) {
      choice.kernel = LinearKernel::kStream;
      choice.instance = FindStream(w.format, fp8_rows, choice.rows);
      return choice;
    }
  }
  choice.rounds = rounds;
  // Few rounded rows were never measured: our kernel supports any number.
  const bool few = rounds && choice.rows <= OwnRows(w.format, true) && GemmSupports(w, true);
  const int many = few ? ExpectedGemm(w, choice.rows, true, facts.device->multiprocessors)
                       : ChooseManyRows(w, choice.rows, fp8_rows || rounds, facts);
  if (SupportsManyRows(w, fp8_rows || rounds) && many != kLt) {
    choice.kernel = LinearKernel::kGemm;
    choice.instance = many;
    return choice;
  }
  const bool lt =
      facts.lt_has ? facts.lt_has(w, choice.rows, fp8_rows || rounds) : w.out_features() % 8 == 0;
  if (SupportsManyRows(w, fp8_rows || rounds) && lt) {
    choice.kernel = LinearKernel::kCublasLt;
    return choice;
  }
  choice.kernel = LinearKernel::kStreamPieces;
  choice.rounds = false;
  choice.instance = FindStream(w.format, fp8_rows, OwnRows(w.format, fp8_rows));
  return choice;
}

// Whether a layer can follow `before` in a chain: it reads that one's output and nothing else.
bool Follows(const LinearTraits& before, const ChainLink& next) {
  if (before.out_features() != next.weight.k) return false;
  const StoreForm store = StoreOf(before);
  if (next.normed) return store == StoreForm::kAccumulateF32;
  return store == StoreForm::kBf16 || store == StoreForm::kSiluMulBf16;
}

bool IsFast(const LinearTraits& w) { return w.family == static_cast<uint8_t>(LinearFamily::kFast); }

}  // namespace

StoreForm StoreOf(const LinearTraits& w) {
  if (w.epilogue == Epilogue::kGatedSilu) return StoreForm::kSiluMulBf16;
  if (w.epilogue == Epilogue::kAccumulate) return StoreForm::kAccumulateF32;
  return w.output == DType::kBF16 ? StoreForm::kBf16 : StoreForm::kF32;
}

// Measured: above these cuBLASLt is faster if it supports the format directly.
int32_t OwnRows(aisp::WeightFormat format, bool fp8_rows) {
  const bool as_it_is = format == aisp::WeightFormat::kCompute || fp8_rows;
  return as_it_is || format == aisp::WeightFormat::kFp8Block ? 64 : 128;
}

bool MayPreferLt(aisp::WeightFormat format, int32_t rows) {
  return format == aisp::WeightFormat::kCompute && rows > kTunedLtRows;
}

int FindStream(aisp::WeightFormat format, bool fp8_rows, int32_t rows) {
  return Find(StreamInstances(), format, fp8_rows, rows);
}
int FindChain(aisp::WeightFormat format, int32_t rows) {
  return Find(ChainInstances(), format, false, rows);
}

bool RoundsRows(const LinearTraits& w, int32_t rows, const DeviceFacts& device) {
  return device.fp8_activation_rows > 0 && rows >= device.fp8_activation_rows && IsFast(w) &&
         IsFp8(w.format) && w.n < kHeadWidth && SupportsManyRows(w, true);
}

LinearChoice ChooseLinear(const LinearTraits& w, int32_t rows, bool fp8_rows, bool rounds,
                          const ChoiceFacts& facts) {
  if (IsFast(w)) return ChooseFast(w, rows, fp8_rows, rounds && !fp8_rows, facts);
  LinearChoice choice;
  choice.rows = rows;
  if (w.family == static_cast<uint8_t>(LinearFamily::kBlockScaled))
    choice.kernel = LinearKernel::kBlockScaled;
  return choice;
}

bool NeedsExpansion(aisp::WeightFormat format, bool fp8_rows) {
  return format != aisp::WeightFormat::kCompute &&
         !(format == aisp::WeightFormat::kFp8 && fp8_rows);
}

bool LtSupports(const LinearTraits& w, bool fp8_rows) {
  return !fp8_rows || (w.format == aisp::WeightFormat::kFp8 && w.n % 16 == 0);
}

bool GemmSupports(const LinearTraits& w, bool fp8_rows) {
  return (IsFp8(w.format) || !fp8_rows) && w.out_features() * (IsF32(w) ? 4 : 2) % 16 == 0;
}

bool SupportsManyRows(const LinearTraits& w, bool fp8_rows) {
  return LtSupports(w, fp8_rows) || GemmSupports(w, fp8_rows);
}

std::vector<int> GemmInstancesOf(aisp::WeightFormat format, bool fp8_rows) {
  std::vector<int> found;
  const auto all = GemmInstances();
  for (size_t i = 0; i < all.size(); ++i) {
    if (all[i].format == format && all[i].fp8_rows == fp8_rows)
      found.push_back(static_cast<int>(i));
  }
  return found;
}

int GemmSplits(const LinearTraits& w, int32_t rows, int instance, int multiprocessors) {
  const GemmInstance& g = GemmInstances()[static_cast<size_t>(instance)];
  const StoreForm store = StoreOf(w);
  if (g.format != aisp::WeightFormat::kFp8 || !g.fp8_rows || g.tokens > kSplitTokens ||
      (store != StoreForm::kAccumulateF32 && store != StoreForm::kBf16))
    return 1;
  const int64_t tiles = DivideUp(rows, g.tokens) * DivideUp(w.n, kGemmPairRows);
  const int64_t steps = DivideUp(w.k, g.step_k);
  int best = 1;
  for (const int splits : {2, 3, 4}) {
    // The exchange of sums costs more than short parts would gain.
    const bool pays = steps / splits * (g.step_k / g.stage_k) >= kLeastSplitStages;
    if (pays && tiles * splits <= multiprocessors / 2) best = splits;
  }
  return best;
}

double GemmEstimate(const LinearTraits& w, int32_t rows, int instance, int multiprocessors) {
  const GemmInstance& g = GemmInstances()[static_cast<size_t>(instance)];
  if (g.most_rows > 0 && rows > g.most_rows) return std::numeric_limits<double>::infinity();
  const int64_t clusters = multiprocessors / 2;
  const int splits = GemmSplits(w, rows, instance, multiprocessors);
  const int64_t tiles = DivideUp(rows, g.tokens) * DivideUp(w.n, kGemmPairRows);
  const int64_t rounds = DivideUp(tiles * splits, clusters);
  const int64_t stages = DivideUp(DivideUp(w.k, g.step_k), splits) * (g.step_k / g.stage_k);
  const double epilogue = (IsF32(w) ? 22.0 : 11.0) * g.tokens;
  return static_cast<double>(rounds) * (static_cast<double>(stages) * StageCycles(g) + epilogue) /
             kCyclesPerUs +
         (splits > 1 ? kExchangeUs : 0) + kLaunchUs;
}

int ExpectedGemm(const LinearTraits& w, int32_t rows, bool fp8_rows, int multiprocessors) {
  const std::vector<int> instances = GemmInstancesOf(w.format, fp8_rows);
  return *std::min_element(instances.begin(), instances.end(), [&](int a, int b) {
    return GemmEstimate(w, rows, a, multiprocessors) < GemmEstimate(w, rows, b, multiprocessors);
  });
}

int ChooseManyRows(const LinearTraits& w, int32_t rows, bool fp8_rows, const ChoiceFacts& facts) {
  if (!GemmSupports(w, fp8_rows)) return kLt;
  const auto expected = [&] {
    return ExpectedGemm(w, rows, fp8_rows, facts.device->multiprocessors);
  };
  if (!LtSupports(w, fp8_rows) || NeedsExpansion(w.format, fp8_rows)) return expected();
  const std::map<int32_t, int>* known = facts.profile->Of(TuningProfile::KeyOf(w, fp8_rows));
  if (known != nullptr && !known->empty()) {
    const auto exact = known->find(rows);
    if (exact != known->end()) {
      if (exact->second == TuningProfile::kLtTokens) return kLt;
      for (const int i : GemmInstancesOf(w.format, fp8_rows)) {
        if (GemmInstances()[static_cast<size_t>(i)].tokens == exact->second) return i;
      }
      return expected();
    }
    const auto distance = [&](const auto& entry) {
      return std::abs(std::log(static_cast<double>(entry.first) / rows));
    };
    const auto nearest =
        std::min_element(known->begin(), known->end(),
                         [&](const auto& a, const auto& b) { return distance(a) < distance(b); });
    if (distance(*nearest) < std::log(kNear))
      return nearest->second == TuningProfile::kLtTokens ? kLt : expected();
  }
  const bool gated = w.epilogue == Epilogue::kGatedSilu;
  return rows >= (gated ? kOwnGatedGemmRows : kOwnGemmRows) ? expected() : kLt;
}

int64_t OneTokenSlots(const ChainLink& link) {
  return link.normed ? link.weight.k : link.weight.k / 2;
}

int OneTokenInputBytes(std::span<const ChainLink> links) {
  const OneTokenInstance kernel = OneTokenInstanceOf(links[0].weight.format);
  int64_t bytes = 0;
  for (const ChainLink& link : links)
    bytes = std::max(bytes, DivideUp(link.weight.k, kernel.stage_k()) * kernel.block_k * 2);
  return static_cast<int>(bytes);
}

int OneTokenRing(std::span<const ChainLink> links) {
  const OneTokenInstance kernel = OneTokenInstanceOf(links[0].weight.format);
  const bool alone = links.size() > 1 || links[0].weight.n >= kHeadWidth;
  const int shared = alone ? kSharedOfChain : kSharedOfOne;
  const int left = shared - kernel.fixed_bytes - OneTokenInputBytes(links) * kernel.warps;
  return std::min(kMostRing, left / kernel.stage_bytes);
}

size_t OneTokenChain(std::span<const ChainLink> links, int32_t rows) {
  if (rows != 1 || links.empty() || links[0].normed) return 0;
  const aisp::WeightFormat format = links[0].weight.format;
  const OneTokenInstance kernel = OneTokenInstanceOf(format);
  const int unit_k = std::min(kernel.block_k, 128);
  int64_t slots = 0;
  size_t fitting = 0;
  for (size_t i = 0; i < std::min(links.size(), kMostChainLinks); ++i) {
    const LinearTraits& w = links[i].weight;
    if (!IsFast(w) || w.format != format || w.k % unit_k != 0 || w.n >= INT32_MAX / 2) break;
    if (i > 0 && !Follows(links[i - 1].weight, links[i])) break;
    if (i > 0) slots += OneTokenSlots(links[i]);
    if (slots > kTokenStepSlots) break;
    // A wider layer may leave too little room for the stages of earlier, narrower ones.
    if (OneTokenRing(links.first(i + 1)) >= kLeastRing) fitting = i + 1;
  }
  return fitting;
}

int64_t FewTokensSlots(const ChainLink& link) {
  constexpr int64_t kTileRows = 16;
  const int64_t squares = link.normed ? link.weight.k / kTileRows : 0;
  return (link.weight.k / 2 + squares) * kMostFewTokens;
}

size_t FewTokensChain(std::span<const ChainLink> links, int32_t rows) {
  if (rows < 2 || rows > kMostFewTokens || links.empty() || links[0].normed) return 0;
  const aisp::WeightFormat format = links[0].weight.format;
  const int block_k = FewTokensBlockK(format);
  if (block_k == 0) return 0;
  int64_t slots = 0;
  size_t fitting = 0;
  for (size_t i = 0; i < std::min(links.size(), kMostChainLinks); ++i) {
    const LinearTraits& w = links[i].weight;
    if (!IsFast(w) || w.format != format || w.k % block_k != 0 || w.n >= INT32_MAX / 2) break;
    if (i > 0 && !Follows(links[i - 1].weight, links[i])) break;
    if (i > 0) slots += FewTokensSlots(links[i]);
    if (slots > kFewTokensSetSlots) break;
    fitting = i + 1;
  }
  return fitting;
}

size_t StreamChain(std::span<const ChainLink> links, int32_t rows, int multiprocessors) {
  if (rows < 1 || links.empty() || links[0].normed || !IsFast(links[0].weight)) return 0;
  const aisp::WeightFormat format = links[0].weight.format;
  const int found = FindChain(format, rows);
  if (found < 0) return 0;
  const StreamInstance& kernel = ChainInstances()[static_cast<size_t>(found)];
  size_t fitting = 0;
  for (size_t i = 0; i < std::min(links.size(), kMostChainLinks); ++i) {
    const LinearTraits& w = links[i].weight;
    if (!IsFast(w) || w.format != format) break;
    const int64_t units = DivideUp(w.n, kernel.rows) * DivideUp(w.k, kernel.stage_k);
    if (units > INT32_MAX / multiprocessors) break;
    if (i > 0) {
      const LinearTraits& before = links[i - 1].weight;
      if (!Follows(before, links[i])) break;
      const auto groups = static_cast<size_t>(DivideUp(before.n, 16));
      if (links[i].normed &&
          groups * static_cast<size_t>(kernel.tokens) * sizeof(float) > kSquareBytes)
        break;
    }
    fitting = i + 1;
  }
  return fitting;
}

}  // namespace aisp::cuda
