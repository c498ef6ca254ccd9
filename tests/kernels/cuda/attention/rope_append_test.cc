// RoPE with KV append against plain loops on the host.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>

#include "tests/kernels/cuda/attention/attention_case.h"

namespace aisp::cuda {
namespace {

struct RopeCase {
  int32_t rows = 13;
  int32_t heads = 6;
  int32_t kv_heads = 2;
  int32_t dim = 128;
  int32_t block_tokens = 16;
  DType type = DType::kBF16;  // of the rows
  DType kv = DType::kBF16;
  bool norm = false;
};

constexpr float kKScale = 0.25f;
constexpr float kVScale = 0.5f;
constexpr int32_t kPositions = 300;
constexpr int32_t kBlocks = 9;

std::vector<uint8_t> Encode(const std::vector<float>& values, DType type) {
  std::vector<uint8_t> bytes(values.size() * DTypeBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    const uint16_t bits = Bf16FromFloat(values[i]);
    if (type == DType::kF32) std::memcpy(&bytes[4 * i], &values[i], 4);
    if (type == DType::kBF16) std::memcpy(&bytes[2 * i], &bits, 2);
    if (type == DType::kF8E4M3) bytes[i] = E4M3FromFloat(values[i]);
  }
  return bytes;
}

std::vector<float> Decode(const std::vector<uint8_t>& bytes, DType type) {
  std::vector<float> values(bytes.size() / DTypeBytes(type));
  for (size_t i = 0; i < values.size(); ++i) {
    uint16_t bits = 0;
    if (type == DType::kF32) std::memcpy(&values[i], &bytes[4 * i], 4);
    if (type == DType::kBF16) std::memcpy(&bits, &bytes[2 * i], 2);
    if (type == DType::kBF16) values[i] = FloatFromBf16(bits);
    if (type == DType::kF8E4M3) values[i] = FloatFromE4M3(bytes[i]);
  }
  return values;
}

std::vector<float> Random(size_t count, uint64_t seed) {
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  std::vector<float> values(count);
  for (float& v : values) v = normal(random);
  return values;
}

// A head in double precision, normalised (unless the weight is null) and rotated.
std::vector<double> RotatedHead(const float* x, const float* weight, const float* angles,
                                int32_t dim) {
  std::vector<double> head(x, x + dim);
  if (weight != nullptr) {
    double sum = 0;
    for (double v : head) sum += v * v;
    for (int32_t d = 0; d < dim; ++d)
      head[static_cast<size_t>(d)] *= weight[d] / std::sqrt(sum / dim + 1e-6);
  }
  for (int32_t d = 0; d < dim / 2; ++d) {
    const double a = head[static_cast<size_t>(d)], b = head[Index(d + dim / 2)];
    head[static_cast<size_t>(d)] = a * angles[d] - b * angles[d + dim / 2];
    head[Index(d + dim / 2)] = b * angles[d] + a * angles[d + dim / 2];
  }
  return head;
}

void ExpectNear(double is, double should, DType type, const char* what) {
  const double relative = type == DType::kF32 ? 1e-5 : type == DType::kBF16 ? 5e-3 : 7e-2;
  ASSERT_NEAR(is, should, relative * std::fabs(should) + (type == DType::kF8E4M3 ? 2e-3 : 1e-5))
      << what;
}

// [kPositions][dim]: cosines, then sines.
std::vector<float> Angles(int32_t dim) {
  std::vector<float> cos_sin(Index(int64_t{kPositions} * dim));
  for (int32_t p = 0; p < kPositions; ++p) {
    for (int32_t d = 0; d < dim / 2; ++d) {
      const float angle = static_cast<float>(p) * std::pow(10000.0f, -2.0f * static_cast<float>(d) /
                                                                         static_cast<float>(dim));
      cos_sin[Index(static_cast<int64_t>(p) * dim + d)] = std::cos(angle);
      cos_sin[Index(static_cast<int64_t>(p) * dim + d + dim / 2)] = std::sin(angle);
    }
  }
  return cos_sin;
}

struct HostRows {
  explicit HostRows(const RopeCase& c)
      : stride(static_cast<int64_t>(c.heads + 2 * c.kv_heads) * c.dim),
        qkv_bytes(Encode(Random(static_cast<size_t>(c.rows * stride), 1), c.type)),
        qkv(Decode(qkv_bytes, c.type)),
        q_norm(Random(Index(c.dim), 2)),
        k_norm(Random(Index(c.dim), 3)),
        cos_sin(Angles(c.dim)),
        slots(static_cast<size_t>(kBlocks * c.block_tokens)) {
    std::iota(slots.begin(), slots.end(), 0);
    std::shuffle(slots.begin(), slots.end(), std::mt19937(4));
    // One row is padding.
    for (int32_t r = 0; r < c.rows; ++r) positions.push_back(r == 5 ? -1 : (r * 37) % kPositions);
  }
  const float* AnglesOf(int32_t row, size_t dim) const {
    return &cos_sin[static_cast<size_t>(std::max(0, positions[Index(row)])) * dim];
  }

  int64_t stride;
  std::vector<uint8_t> qkv_bytes;
  std::vector<float> qkv;  // as the kernel sees them
  std::vector<float> q_norm, k_norm, cos_sin;
  std::vector<int32_t> slots, positions;
};

void CheckQueries(const RopeCase& c, const HostRows& host, const std::vector<float>& out) {
  const auto dim = static_cast<size_t>(c.dim);
  for (int32_t r = 0; r < c.rows; ++r) {
    const float* row = &host.qkv[static_cast<size_t>(r * host.stride)];
    for (int32_t h = 0; h < c.heads; ++h) {
      const std::vector<double> head = RotatedHead(
          row + h * c.dim, c.norm ? host.q_norm.data() : nullptr, host.AnglesOf(r, dim), c.dim);
      for (size_t d = 0; d < dim; ++d) {
        const float is = out[static_cast<size_t>(r * c.heads + h) * dim + d];
        if (host.positions[Index(r)] < 0) {
          ASSERT_TRUE(std::isnan(is));
        } else {
          ExpectNear(is, head[d], c.type, "q");
        }
      }
    }
  }
}

// The keys and values of each row are in its slot, and nothing else was written.
void CheckPool(const RopeCase& c, const HostRows& host, const std::vector<float>& pool) {
  const auto dim = static_cast<size_t>(c.dim);
  size_t written = 0;
  for (int32_t r = 0; r < c.rows; ++r) {
    if (host.positions[Index(r)] < 0) continue;
    const float* row = &host.qkv[static_cast<size_t>(r * host.stride)];
    const int32_t slot = host.slots[Index(r)];
    for (int32_t h = 0; h < c.kv_heads; ++h) {
      const float* k = row + (c.heads + h) * c.dim;
      const float* v = row + (c.heads + c.kv_heads + h) * c.dim;
      const std::vector<double> head =
          RotatedHead(k, c.norm ? host.k_norm.data() : nullptr, host.AnglesOf(r, dim), c.dim);
      for (int part = 0; part < 2; ++part) {
        const size_t at =
            static_cast<size_t>((((slot / c.block_tokens) * c.kv_heads + h) * 2 + part) *
                                    c.block_tokens +
                                slot % c.block_tokens) *
            dim;
        const double scale = c.kv != DType::kF8E4M3 ? 1.0 : part == 0 ? kKScale : kVScale;
        for (size_t d = 0; d < dim; ++d) {
          ExpectNear(pool[at + d] * scale, part == 0 ? head[d] : static_cast<double>(v[d]), c.kv,
                     part == 0 ? "k" : "v");
        }
        written += dim;
      }
    }
  }
  const auto untouched = static_cast<size_t>(
      std::count_if(pool.begin(), pool.end(), [](float x) { return std::isnan(x); }));
  EXPECT_EQ(untouched + written, pool.size());
}

// `elements` values of a device's memory.
std::vector<float> Download(const DeviceBytes& from, size_t elements, DType type) {
  std::vector<uint8_t> bytes(elements * DTypeBytes(type));
  EXPECT_EQ(cudaMemcpy(bytes.data(), from.as<void>(), bytes.size(), cudaMemcpyDeviceToHost),
            cudaSuccess);
  return Decode(bytes, type);
}

void Check(const RopeCase& c) {
  if (!HaveGpu()) GTEST_SKIP() << "no GPU";
  const HostRows host(c);
  const size_t pool_elements =
      Index(static_cast<int64_t>(kBlocks) * c.kv_heads * 2 * c.block_tokens * c.dim);
  const size_t out_elements = Index(static_cast<int64_t>(c.rows) * c.heads * c.dim);
  const DeviceBytes d_qkv(host.qkv_bytes.data(), host.qkv_bytes.size()),
      d_angles(host.cos_sin.data(), host.cos_sin.size() * 4);
  const DeviceBytes d_qn(host.q_norm.data(), host.q_norm.size() * 4),
      d_kn(host.k_norm.data(), host.k_norm.size() * 4);
  const DeviceBytes d_slots(host.slots.data(), host.slots.size() * 4),
      d_positions(host.positions.data(), host.positions.size() * 4);
  const DeviceBytes d_out(out_elements * DTypeBytes(c.type)),
      d_pool(pool_elements * DTypeBytes(c.kv));
  cudaMemset(d_out.as<void>(), 0xff, out_elements * DTypeBytes(c.type));
  cudaMemset(d_pool.as<void>(), 0xff, pool_elements * DTypeBytes(c.kv));

  RopeAppendCall call;
  call.qkv = d_qkv.as<void>();
  call.qkv_type = c.type;
  call.qkv_row_stride = host.stride;
  call.q_out = d_out.as<void>();
  call.q_out_row_stride = static_cast<int64_t>(c.heads) * c.dim;
  call.cos_sin = d_angles.as<float>();
  call.q_norm = c.norm ? d_qn.as<float>() : nullptr;
  call.k_norm = c.norm ? d_kn.as<float>() : nullptr;
  call.rows = c.rows;
  call.num_heads = c.heads;
  call.positions = d_positions.as<int32_t>();
  call.kv_slots = d_slots.as<int32_t>();
  call.kv.layer = d_pool.as<void>();
  call.kv.dtype = c.kv;
  call.kv.num_kv_heads = c.kv_heads;
  call.kv.head_dim = c.dim;
  call.kv.block_tokens = c.block_tokens;
  call.k_scale = kKScale;
  call.v_scale = kVScale;
  ASSERT_TRUE(RopeAppend(call, nullptr));
  CheckQueries(c, host, Download(d_out, out_elements, c.type));
  CheckPool(c, host, Download(d_pool, pool_elements, c.kv));
}

TEST(CudaRopeAppend, EveryFormatAndHeadDim) {
  for (int32_t dim : {64, 128, 256}) {
    for (DType type : {DType::kBF16, DType::kF32}) {
      for (DType kv : {DType::kF32, DType::kBF16, DType::kF8E4M3}) {
        for (bool norm : {false, true}) {
          RopeCase c;
          c.dim = dim;
          c.type = type;
          c.kv = kv;
          c.norm = norm;
          Check(c);
        }
      }
    }
  }
}

TEST(CudaRopeAppend, BlockSizesAndHeadCounts) {
  for (int32_t block : {16, 48, 64, 128}) {
    RopeCase c;
    c.block_tokens = block;
    c.heads = 7;
    c.kv_heads = 1;
    c.rows = 40;
    Check(c);
  }
}

// More heads than a thread block processes at a time.
TEST(CudaRopeAppend, ManyHeads) {
  for (int32_t dim : {64, 128, 256}) {
    RopeCase c;
    c.dim = dim;
    c.heads = 61;
    c.kv_heads = 9;
    c.norm = dim == 128;
    Check(c);
  }
}

}  // namespace
}  // namespace aisp::cuda
