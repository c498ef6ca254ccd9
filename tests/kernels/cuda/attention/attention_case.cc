#include "tests/kernels/cuda/attention/attention_case.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <thread>

namespace aisp::cuda {

uint16_t Bf16FromFloat(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  if (std::isnan(value)) return 0x7fff;
  return static_cast<uint16_t>((bits + 0x7fff + ((bits >> 16) & 1)) >> 16);
}

float FloatFromBf16(uint16_t bits) {
  const uint32_t wide = static_cast<uint32_t>(bits) << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

float FloatFromE4M3(uint8_t bits) {
  const int exponent = (bits >> 3) & 15;
  const int mantissa = bits & 7;
  if (exponent == 15 && mantissa == 7) return std::numeric_limits<float>::quiet_NaN();
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (bits & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t E4M3FromFloat(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  const float magnitude = std::min(std::fabs(value), 448.0f);
  // Rounds to the nearest multiple of the step at this magnitude, ties to even, as in the default
  // rounding mode.
  const int exponent = magnitude < 0x1p-6f ? -6 : std::ilogb(magnitude);
  const float steps = std::nearbyint(std::ldexp(magnitude, 3 - exponent));
  const int code = static_cast<int>(steps) +
                   (exponent + 6) * 8;  // steps below 8 are subnormal; 16 carries into the exponent
  return static_cast<uint8_t>(sign | std::min(code, 0x7e));
}

bool HaveGpu() {
  int count = 0;
  return cudaGetDeviceCount(&count) == cudaSuccess && count > 0;
}

DeviceBytes::DeviceBytes(size_t bytes) {
  if (cudaMalloc(&data_, std::max<size_t>(bytes, 16)) != cudaSuccess) data_ = nullptr;
}
DeviceBytes::DeviceBytes(const void* host, size_t bytes) : DeviceBytes(bytes) {
  cudaMemcpy(data_, host, bytes, cudaMemcpyHostToDevice);
}
DeviceBytes::~DeviceBytes() { cudaFree(data_); }

std::string AttentionCase::Name() const {
  std::string text = std::to_string(heads) + "/" + std::to_string(kv_heads) + " heads of " +
                     std::to_string(head_dim) + ", blocks of " + std::to_string(block_tokens) +
                     ", kv " + (kv == DType::kBF16 ? "bf16" : "fp8") + ", q " +
                     (q == DType::kBF16 ? "bf16" : "f32") + ", window " + std::to_string(window) +
                     ", rows/context";
  for (size_t i = 0; i < std::min<size_t>(sequences.size(), 6); ++i) {
    text += " " + std::to_string(sequences[i].rows) + "/" + std::to_string(sequences[i].context);
  }
  return text;
}

namespace {

constexpr float kKScale = 0.37f;
constexpr float kVScale = 1.7f;

struct HostStep {
  std::vector<RowSpan> spans;
  std::vector<int32_t> tables;
  std::vector<float> q;  // as the kernel sees it, dense [rows, heads, dim]
  std::vector<float> k,
      v;  // as the kernel sees them: per sequence [context][kv_heads][dim], one after another
  std::vector<int64_t> kv_begin;
  std::vector<uint8_t> pool, q_bytes;
  int64_t rows = 0, blocks = 0, q_stride = 0;
};

struct RandomNormal {
  std::mt19937_64 random;
  std::normal_distribution<float> normal;
  float Next() { return normal(random); }
};

// Puts random keys and values of one sequence into the blocks of its table.
void FillPool(const AttentionCase& c, const RowSpan& span, RandomNormal& random, HostStep& h) {
  const int64_t part = static_cast<int64_t>(c.block_tokens) * c.head_dim;
  for (int32_t t = 0; t < span.context_len; ++t) {
    const int64_t block = h.tables[Index(span.table_begin + t / c.block_tokens)];
    for (int32_t head = 0; head < c.kv_heads; ++head) {
      for (int which = 0; which < 2; ++which) {
        std::vector<float>& to = which == 0 ? h.k : h.v;
        const int64_t at = ((block * c.kv_heads + head) * 2 + which) * part +
                           static_cast<int64_t>(t % c.block_tokens) * c.head_dim;
        for (int32_t d = 0; d < c.head_dim; ++d) {
          const float x = random.Next();
          if (c.kv == DType::kBF16) {
            const uint16_t bits = Bf16FromFloat(x);
            std::memcpy(&h.pool[static_cast<size_t>((at + d) * 2)], &bits, 2);
            to.push_back(FloatFromBf16(bits));
          } else {
            const float scale = which == 0 ? kKScale : kVScale;
            const uint8_t bits = E4M3FromFloat(x / scale);
            h.pool[static_cast<size_t>(at + d)] = bits;
            to.push_back(FloatFromE4M3(bits) * scale);
          }
        }
      }
    }
  }
}

// Random queries in the rows of a fused qkv buffer: k and v of the row are after q.
void FillQueries(const AttentionCase& c, RandomNormal& random, HostStep& h) {
  h.q_stride = static_cast<int64_t>(c.heads + 2 * c.kv_heads) * c.head_dim;
  const int64_t element = static_cast<int64_t>(DTypeBytes(c.q));
  h.q_bytes.resize(static_cast<size_t>(h.rows * h.q_stride * element), 0xff);
  for (int64_t row = 0; row < h.rows; ++row) {
    for (int64_t i = 0; i < static_cast<int64_t>(c.heads) * c.head_dim; ++i) {
      const float x = c.q_scale * random.Next();
      const uint16_t bits = Bf16FromFloat(x);
      const size_t at = static_cast<size_t>((row * h.q_stride + i) * element);
      if (c.q == DType::kBF16) {
        std::memcpy(&h.q_bytes[at], &bits, 2);
        h.q.push_back(FloatFromBf16(bits));
      } else {
        std::memcpy(&h.q_bytes[at], &x, 4);
        h.q.push_back(x);
      }
    }
  }
}

HostStep MakeStep(const AttentionCase& c) {
  HostStep h;
  RandomNormal random{std::mt19937_64(c.seed), {}};
  int64_t used = 0;
  for (const SequenceCase& s : c.sequences)
    used += (s.context + c.block_tokens - 1) / c.block_tokens;
  h.blocks = used + 3;
  std::vector<int32_t> ids(static_cast<size_t>(h.blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random.random);

  const int64_t element = static_cast<int64_t>(DTypeBytes(c.kv));
  const int64_t part = static_cast<int64_t>(c.block_tokens) * c.head_dim;
  h.pool.resize(static_cast<size_t>(h.blocks * c.kv_heads * 2 * part * element),
                0xff);  // NaN in both formats
  int64_t kv_at = 0;
  for (const SequenceCase& s : c.sequences) {
    RowSpan span;
    span.row_begin = static_cast<int32_t>(h.rows);
    span.num_rows = s.rows;
    span.context_len = s.context;
    span.table_begin = static_cast<int32_t>(h.tables.size());
    h.rows += s.rows;
    const int32_t blocks = (s.context + c.block_tokens - 1) / c.block_tokens;
    for (int32_t b = 0; b < blocks; ++b) {
      h.tables.push_back(ids.back());
      ids.pop_back();
    }
    h.kv_begin.push_back(kv_at);
    h.spans.push_back(span);
    FillPool(c, span, random, h);
    kv_at += static_cast<int64_t>(s.context) * c.kv_heads * c.head_dim;
  }
  FillQueries(c, random, h);
  return h;
}

// One {row, head} of sequence `s`.
void ReferenceRow(const AttentionCase& c, const HostStep& h, size_t s, int32_t row, int32_t head,
                  std::vector<double>& weights, double* out) {
  const RowSpan& span = h.spans[s];
  const int32_t position = span.context_len - span.num_rows + row;
  const int32_t low = c.window > 0 ? std::max(0, position - c.window + 1) : 0;
  const int32_t kv_head = head / (c.heads / c.kv_heads);
  const float* q =
      &h.q[Index((static_cast<int64_t>(span.row_begin + row) * c.heads + head) * c.head_dim)];
  const auto at = [&](int32_t key) {
    return static_cast<size_t>(h.kv_begin[s] +
                               (static_cast<int64_t>(key) * c.kv_heads + kv_head) * c.head_dim);
  };
  double top = -1e300;
  weights.assign(Index(position + 1), 0.0);
  for (int32_t key = low; key <= position; ++key) {
    double dot = 0;
    for (int32_t d = 0; d < c.head_dim; ++d)
      dot += static_cast<double>(q[d]) * h.k[at(key) + static_cast<size_t>(d)];
    weights[static_cast<size_t>(key)] = dot / std::sqrt(static_cast<double>(c.head_dim));
    top = std::max(top, weights[static_cast<size_t>(key)]);
  }
  double sum = 0;
  std::fill(out, out + c.head_dim, 0.0);
  for (int32_t key = low; key <= position; ++key) {
    const double weight = std::exp(weights[static_cast<size_t>(key)] - top);
    sum += weight;
    for (int32_t d = 0; d < c.head_dim; ++d)
      out[d] += weight * h.v[at(key) + static_cast<size_t>(d)];
  }
  for (int32_t d = 0; d < c.head_dim; ++d) out[d] /= sum;
}

std::vector<double> Reference(const AttentionCase& c, const HostStep& h) {
  std::vector<double> out(h.q.size());
  std::vector<std::pair<size_t, int32_t>> jobs;
  for (size_t s = 0; s < h.spans.size(); ++s) {
    for (int32_t row = 0; row < h.spans[s].num_rows; ++row) jobs.emplace_back(s, row);
  }
  const size_t threads = std::max(1U, std::thread::hardware_concurrency());
  std::vector<std::thread> pool;
  for (size_t t = 0; t < threads; ++t) {
    pool.emplace_back([&, t] {
      std::vector<double> weights;
      for (size_t j = t; j < jobs.size(); j += threads) {
        const auto [s, row] = jobs[j];
        for (int32_t head = 0; head < c.heads; ++head) {
          ReferenceRow(
              c, h, s, row, head, weights,
              &out[Index((static_cast<int64_t>(h.spans[s].row_begin + row) * c.heads + head) *
                         c.head_dim)]);
        }
      }
    });
  }
  for (std::thread& t : pool) t.join();
  return out;
}

void Compare(const AttentionCase& c, const std::vector<double>& reference,
             const std::vector<uint8_t>& bytes, CaseResult& result) {
  double error = 0, norm = 0;
  result.worst_row = 0;
  const size_t dim = static_cast<size_t>(c.head_dim);
  for (size_t begin = 0; begin < reference.size(); begin += dim) {
    double row_error = 0, row_norm = 0;
    for (size_t i = begin; i < begin + dim; ++i) {
      float x;
      if (c.out == DType::kBF16) {
        uint16_t bits;
        std::memcpy(&bits, &bytes[2 * i], 2);
        x = FloatFromBf16(bits);
      } else {
        std::memcpy(&x, &bytes[4 * i], 4);
      }
      const double d = std::isfinite(x) ? x - reference[i] : 1e30;
      row_error += d * d;
      row_norm += reference[i] * reference[i];
    }
    error += row_error;
    norm += row_norm;
    result.worst_row = std::max(result.worst_row, std::sqrt(row_error / row_norm));
  }
  result.relative = std::sqrt(error / norm);
}

AttentionConfig ConfigOf(const AttentionCase& c) {
  AttentionConfig config;
  config.num_heads = c.heads;
  config.num_kv_heads = c.kv_heads;
  config.head_dim = c.head_dim;
  config.block_tokens = c.block_tokens;
  config.kv = c.kv;
  config.q = c.q;
  config.out = c.out;
  config.scale = 1.0f / std::sqrt(static_cast<float>(c.head_dim));
  config.window = c.window;
  config.max_sequences = static_cast<int32_t>(c.sequences.size()) + 2;
  config.max_decode_tokens = c.decode_tokens;
  config.split_tokens = c.split_tokens;
  return config;
}

// Three runs of a step, the second with the plan of the first. Returns the first run's output and
// whether the others gave the same.
Status RunThrice(const Attention& attention, const AttentionBatch& batch, StepKind kind,
                 const AttentionCall& call, std::vector<uint8_t>* first, bool* repeatable) {
  const DeviceBytes workspace(attention.workspace_bytes());
  std::vector<uint8_t> again(first->size());
  *repeatable = true;
  AISP_RETURN_IF_ERROR(attention.ZeroWorkspace(workspace.as<void>(), nullptr));
  for (int run = 0; run < 3; ++run) {
    cudaMemsetAsync(call.out, 0xff, again.size(), nullptr);
    if (run != 1)
      AISP_RETURN_IF_ERROR(attention.PlanStep(batch, kind, workspace.as<void>(), nullptr));
    AISP_RETURN_IF_ERROR(attention.Run(batch, kind, call, workspace.as<void>(), nullptr));
    const cudaError_t code =
        cudaMemcpy(again.data(), call.out, again.size(), cudaMemcpyDeviceToHost);
    if (code != cudaSuccess) return Internal(cudaGetErrorString(code));
    if (run == 0) *first = again;
    *repeatable = *repeatable && *first == again;
  }
  return {};
}

}  // namespace

CaseResult RunCase(const AttentionCase& c) {
  CaseResult result;
  AttentionConfig config = ConfigOf(c);
  HostStep h = MakeStep(c);
  config.max_rows = static_cast<int32_t>(h.rows);
  auto attention = Attention::Create(config);
  if (!attention) {
    result.error = attention.error().ToString();
    return result;
  }
  // Padding sequences in the middle and at the end.
  std::vector<RowSpan> padded = h.spans;
  padded.insert(padded.begin() + static_cast<std::ptrdiff_t>(padded.size() / 2), RowSpan{});
  padded.push_back(RowSpan{});
  const DeviceBytes spans(padded.data(), padded.size() * sizeof(RowSpan));
  const DeviceBytes tables(h.tables.data(), h.tables.size() * 4);
  const DeviceBytes pool(h.pool.data(), h.pool.size());
  const DeviceBytes q(h.q_bytes.data(), h.q_bytes.size());
  const size_t out_bytes = h.q.size() * DTypeBytes(c.out);
  const DeviceBytes out(out_bytes);

  auto layer = (*attention)->MakeLayer(pool.as<void>(), h.blocks);
  if (!layer) {
    result.error = layer.error().ToString();
    return result;
  }
  AttentionBatch batch;
  batch.sequences = spans.as<RowSpan>();
  batch.block_tables = tables.as<int32_t>();
  batch.num_sequences = config.max_sequences;
  AttentionCall call;
  call.q = q.as<void>();
  call.q_row_stride = h.q_stride;
  call.out = out.as<void>();
  call.out_row_stride = static_cast<int64_t>(c.heads) * c.head_dim;
  call.layer = &*layer;
  call.k_scale = kKScale;
  call.v_scale = kVScale;

  std::vector<uint8_t> first(out_bytes);
  const Status status = RunThrice(**attention, batch, c.kind, call, &first, &result.repeatable);
  if (!status) {
    result.error = status.error().ToString();
    return result;
  }
  Compare(c, Reference(c, h), first, result);
  return result;
}

}  // namespace aisp::cuda
