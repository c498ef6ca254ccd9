// Decode steps in one launch: random steps, the device side that replays them in a graph, and
// checks against double precision on the host, of the KV that is appended to the pool and of the
// attention over the pool after that.
//
// Whatever must not be read is NaN; the output starts as NaN.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/kernels/cuda/attention/attention_case.h"

namespace aisp::cuda {

// Special values of a context: a sequence without rows, and one whose row has a negative position.
constexpr int32_t kNoRows = 0;
constexpr int32_t kNoPosition = -1;

struct DecodeShape {
  int32_t heads = 8;
  int32_t kv_heads = 2;
  int32_t dim = 128;
  int32_t block_tokens = 16;
  DType kv = DType::kBF16;
  DType out = DType::kBF16;
  int32_t window = 0;
  bool norm = false;
  int32_t ctas = 0;
  int32_t most_rows = 1;  // of a sequence
  bool mixed = false;     // those of several rows are prompts
  int32_t split = 0;      // AttentionConfig::split_tokens
};

// A step's sequences and their rows, in order.
struct DecodeStep {
  std::vector<RowSpan> spans;
  std::vector<int32_t> tables, positions, slots;
  std::vector<uint8_t> qkv, pool;  // bf16 rows; the pool before the step
  std::vector<float> q_norm, k_norm, cos_sin;
  int64_t blocks = 0;
  // The sequence of each row, and how many keys the row sees; 0: a row of padding.
  std::vector<int32_t> row_sequences, row_contexts;
};

// Sequences of `contexts` keys, the new ones included, in a pool of `blocks`. They have `rows` rows
// each (at most the context), padded to shape.most_rows; one row each without `rows`.
DecodeStep MakeDecodeStep(const DecodeShape& c, const std::vector<int32_t>& contexts, uint64_t seed,
                          int64_t blocks, const std::vector<int32_t>& rows = {});
// As many blocks as the contexts need, and some that are never used.
int64_t BlocksOf(const DecodeShape& c, const std::vector<int32_t>& contexts);

// The device side of steps of one shape and one number of sequences: a graph of launches that is
// replayed with different contents.
class DecodeRunner {
 public:
  DecodeRunner(const DecodeShape& c, int32_t sequences, int32_t max_context, int64_t blocks,
               int launches);
  ~DecodeRunner();
  DecodeRunner(const DecodeRunner&) = delete;
  DecodeRunner& operator=(const DecodeRunner&) = delete;

  // Replays the graph on a step; all its launches must give the same bits. Without `check` they
  // must also equal those of the step before.
  void Step(const DecodeStep& h, bool check = true);

 private:
  void Note(const Status& status) {
    if (!status) error_ = status.error().ToString();
  }
  void Capture();
  // For a mixed step, whose launches depend on its sequences: without a graph.
  void Launch(const DecodeStep& h);
  RopeAppendCall Rope() const;
  AttentionBatch Batch() const;
  AttentionCall CallOf(int launch) const;

  const DecodeShape c_;
  const size_t sequences_, rows_;
  const int launches_;
  const size_t out_bytes_, pool_bytes_;
  const DeviceBytes spans_, tables_, positions_, slots_, qkv_, pool_, q_norm_, k_norm_, cos_sin_,
      out_;
  std::unique_ptr<Attention> attention_;
  std::unique_ptr<DeviceBytes> workspace_;
  KvLayer layer_;
  cudaStream_t stream_ = nullptr;
  cudaGraphExec_t graph_ = nullptr;
  std::string error_;
  std::vector<uint8_t> last_;
};

}  // namespace aisp::cuda
