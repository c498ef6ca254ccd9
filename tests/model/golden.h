// Recorded outputs of Hugging Face transformers, and a small loop that runs an executor the way an
// engine does.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/model_executor.h"

namespace aisp {

struct GoldenCase {
  std::vector<TokenId> prompt;
  std::vector<TokenId> greedy;
  std::vector<float> last_logits;
  double mean_nll = -1;  // negative: not recorded
  double min_top2_margin = 0;
};

// tests/data/goldens/<name>/expected.json
std::vector<GoldenCase> LoadGolden(const std::string& name);
std::string GoldenDirectory(const std::string& name);
// models/<name> of the source tree, or of the shared folder; "" when there is none.
std::string StoryDirectory(const std::string& name);

std::unique_ptr<Device> MakeTestDevice();
std::unique_ptr<Ops> MakeTestOps();

// Whether this machine can multiply matrices in `dtype`: bf16 needs AVX-512 or better.
bool CpuComputes(DType dtype);

struct Rig {
  std::unique_ptr<Device> device;
  std::unique_ptr<Ops> ops;
  std::unique_ptr<ServingExecutor> executor;

  struct Options {
    int32_t block_tokens = 16;
    int32_t num_blocks = 256;
    std::optional<DType> compute_dtype = DType::kF32;
    std::optional<DType> kv_dtype = std::nullopt;
    int32_t max_batch_tokens = 256;
    int32_t max_slots = 16;
    int threads = 1;
    std::vector<std::shared_ptr<const LoraAdapter>> adapters = {};
    int32_t max_adapters = 0;
    int32_t output_tokens = 0;
  };
  static Rig Open(const std::string& directory, const Options& options);
  // A rig on another device; `made` holds what it needs.
  static Rig Around(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops,
                    std::unique_ptr<ServingExecutor> executor);

  // One sequence's blocks in the pool: they are taken in a scrambled order.
  struct Sequence {
    std::vector<TokenId> tokens;
    int32_t computed = 0;
    std::vector<int32_t> table;
    std::vector<BlockId> blocks;
    int32_t adapter = -1;
  };
  Sequence NewSequence(std::vector<TokenId> tokens, int32_t max_tokens);

  struct Rows {
    Sequence* sequence = nullptr;
    int32_t count = 0;
    bool all_logits = false;  // false: only those of the last row
  };
  // One step over the rows; returns the requested logits, in order.
  std::vector<std::vector<float>> Step(const std::vector<Rows>& rows, LayerSink* sink = nullptr);
  // Logits after each token of `tokens`, computed in chunks.
  std::vector<std::vector<float>> AllLogits(const std::vector<TokenId>& tokens, int32_t chunk);
  // Logits after the last token.
  std::vector<float> LastLogits(Sequence& sequence, int32_t chunk);
  std::vector<TokenId> Greedy(const std::vector<TokenId>& prompt, int32_t count, int32_t chunk,
                              const std::vector<TokenId>& stop = {});

  // A row of the last step's logits, in host memory.
  std::vector<float> ReadLogits(int64_t row);

  int32_t next_block = 0;
};

TokenId ArgMax(const std::vector<float>& logits);
// Average over i of tokens[i + 1] after tokens[..i].
double MeanNll(const std::vector<TokenId>& tokens, const std::vector<std::vector<float>>& logits);

}  // namespace aisp
