// Low-rank adapters on the CPU, one row at a time, so that a row's result does not depend on the
// batch.
#include <algorithm>

#include "common/check.h"
#include "kernels/adapters.h"
#include "kernels/cpu/cpu_ops_impl.h"

namespace aisp {
namespace {

// Sixteen partial sums, which compilers keep in vectors.
float Dot(const float* a, const float* b, int64_t n) {
  constexpr int64_t kLanes = 16;
  float sums[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes) {
    for (int64_t k = 0; k < kLanes; ++k) sums[k] += a[i + k] * b[i + k];
  }
  float sum = 0;
  for (; i < n; ++i) sum += a[i] * b[i];
  for (const float each : sums) sum += each;
  return sum;
}

}  // namespace

void CpuOps::AddAdapters(const LinearParams& p, const int32_t* adapter_of_row) {
  const int64_t in = p.weight->in_features(), out = p.weight->out_features();
  const bool bf16 = p.x.dtype == DType::kBF16;
  adapter_scratch_.resize(static_cast<size_t>(pool_.threads()));
  pool_.For(p.rows, [&](int64_t row, int thread) {
    const int32_t adapter = adapter_of_row[row];
    if (adapter < 0) return;
    AISP_CHECK(static_cast<size_t>(adapter) < p.adapters->adapters.size());
    const auto& parts = p.adapters->adapters[static_cast<size_t>(adapter)];
    if (parts.empty()) return;
    const float* x = bf16 ? nullptr : p.x.as<float>() + row * in;
    if (bf16) {
      std::vector<float>& wide = adapter_scratch_[static_cast<size_t>(thread)];
      wide.resize(std::max(wide.size(), static_cast<size_t>(in)));
      kernels_.from_bf16(p.x.as<uint16_t>() + row * in, wide.data(), in);
      x = wide.data();
    }
    for (const AdapterPart& part : parts) {
      float* y = p.y.as<float>() + row * out + part.column;
      for (int64_t r = 0; r < part.rank; ++r)
        kernels_.add_scaled(y, part.up.data() + r * part.out, Dot(part.down.data() + r * in, x, in),
                            part.out);
    }
  });
}

}  // namespace aisp
