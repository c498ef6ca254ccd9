// CpuOps: declarations shared by its translation units (cpu_ops.cc: rows; cpu_attention.cc;
// cpu_experts.cc; cpu_programme.cc: the table that maps nodes to kernels).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kernels/cpu/cpu_ops.h"
#include "kernels/cpu/linear.h"
#include "kernels/cpu/row_kernels.h"
#include "kernels/cpu/thread_pool.h"

namespace aisp {

class CpuOps final : public Ops {
 public:
  static Result<std::unique_ptr<CpuOps>> Create(const CpuOpsOptions& options);

  std::string Describe() const override;
  DType PreferredComputeDType(DType checkpoint, int64_t elements) const override;
  int64_t RowCapacity(int64_t rows) const override { return rows; }
  DType ActivationDType(DType) const override { return DType::kF32; }
  bool Fuses(Epilogue epilogue, DType) const override { return epilogue != Epilogue::kGatedSilu; }
  bool Supports(WeightFormat format, DType) const override {
    return format == WeightFormat::kCompute;
  }

  Result<std::unique_ptr<PackedLinear>> PackLinear(const LinearSource& source) override;
  Result<std::unique_ptr<PackedExperts>> PackExperts(const ExpertsSource& source) override;

  bool DrawsTokens() const override { return false; }
  Status FillRandom(const TensorView& target, float deviation, uint64_t seed,
                    Stream& stream) override;

  Result<std::unique_ptr<PreparedStep>> Prepare(const Programme& programme,
                                                const Bucket& bucket) override;
  Bucket Canonical(const Bucket& bucket) const override;
  Status Embedding(const EmbeddingParams& params, Stream& stream) override;
  Status Linear(const LinearParams& params, Stream& stream) override;
  // Adds the low-rank products of `p.x` by each row's adapter to `p.y`.
  void AddAdapters(const LinearParams& p, const int32_t* adapter_of_row);
  Status RmsNorm(const RmsNormParams& params, Stream& stream) override;
  Status RopeAppend(const RopeAppendParams& params, Stream& stream) override;
  Status LatentAppend(const LatentAppendParams& params, Stream& stream) override;
  Status PagedAttention(const AttentionParams& params, Stream& stream) override;
  Status SiluMul(const SiluMulParams& params, Stream& stream) override;
  Status SiluAdd(const SiluAddParams& params, int32_t rows);
  Status SelectExperts(const SelectExpertsParams& params, Stream& stream) override;
  Status ExpertMlp(const ExpertMlpParams& params, Stream& stream) override;

 private:
  // A range of rows of one sequence and one KV head: the unit of work of a thread.
  struct AttentionTask {
    int32_t sequence = 0;
    int32_t kv_head = 0;
    int32_t row = 0;  // within the sequence
    int32_t rows = 0;
  };

  explicit CpuOps(int threads) : pool_(threads), kernels_(BestRowKernels()), linear_(&pool_) {}
  void PlanAttention(const AttentionParams& params);
  // Calls body for ranges of several rows, so that threads do not synchronise for each row.
  template <typename Body>
  void ForRows(int64_t rows, const Body& body) {
    constexpr int64_t kRows = 8;
    pool_.For((rows + kRows - 1) / kRows, [&](int64_t chunk, int) {
      const int64_t end = std::min(rows, (chunk + 1) * kRows);
      for (int64_t row = chunk * kRows; row < end; ++row) body(row);
    });
  }

  ThreadPool pool_;
  const RowKernels& kernels_;
  LinearEngine linear_;
  std::vector<AttentionTask> tasks_;                 // of the current call; capacity is kept
  std::vector<std::vector<float>> attend_scratch_;   // one per worker
  std::vector<std::vector<float>> adapter_scratch_;  // one per worker: a row in f32
};

// Converts head_dim values and writes them to a slot of the pool.
void StoreKv(const RowKernels& kernels, const PagedKvView& kv, int32_t kv_slot, int32_t head,
             bool value, const float* from, int64_t n);

}  // namespace aisp
