#include "tests/kernels/cuda/attention/run_decode_case.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <numeric>
#include <random>
#include <thread>

namespace aisp::cuda {
namespace {

constexpr float kKScale = 0.37f;
constexpr float kVScale = 1.7f;
constexpr float kEpsilon = 1e-5f;

int64_t PoolAt(const DecodeShape& c, int32_t slot, int32_t head, int part) {
  return (((static_cast<int64_t>(slot / c.block_tokens) * c.kv_heads + head) * 2 + part) *
              c.block_tokens +
          slot % c.block_tokens) *
         c.dim;
}

void Store(std::vector<uint8_t>& to, int64_t at, float x, DType type, float scale) {
  if (type == DType::kBF16) {
    const uint16_t bits = Bf16FromFloat(x);
    std::memcpy(&to[Index(2 * at)], &bits, 2);
  } else {
    to[Index(at)] = E4M3FromFloat(x / scale);
  }
}
double Load(const std::vector<uint8_t>& from, int64_t at, DType type, float scale) {
  if (type == DType::kF8E4M3) return static_cast<double>(FloatFromE4M3(from[Index(at)])) * scale;
  uint16_t bits;
  std::memcpy(&bits, &from[Index(2 * at)], 2);
  return FloatFromBf16(bits);
}

// Rows of random values in the pool's format: slices of one long row of normal values.
class RandomRows {
 public:
  RandomRows(DType type, float scale, uint64_t seed) : element_(DTypeBytes(type)) {
    std::mt19937_64 random(seed);
    std::normal_distribution<float> normal;
    bytes_.resize(kElements * element_);
    for (size_t i = 0; i < kElements; ++i)
      Store(bytes_, static_cast<int64_t>(i), normal(random), type, scale);
  }
  template <typename Random>
  void Row(uint8_t* to, int32_t dim, Random& random) const {
    std::memcpy(to, &bytes_[random() % (kElements - Index(dim)) * element_], Index(dim) * element_);
  }

 private:
  static constexpr size_t kElements = 1 << 16;
  const size_t element_;
  std::vector<uint8_t> bytes_;
};

std::vector<double> RotatedHead(const DecodeShape& c, const DecodeStep& h, int64_t from,
                                const std::vector<float>& norm, int32_t position) {
  std::vector<double> x, y(Index(c.dim));
  double sum = 0;
  for (int32_t d = 0; d < c.dim; ++d) {
    x.push_back(Load(h.qkv, from + d, DType::kBF16, 1.0f));
    sum += x.back() * x.back();
  }
  for (int32_t d = 0; d < c.dim; ++d) {
    if (c.norm)
      x[Index(d)] *= static_cast<double>(norm[Index(d)]) / std::sqrt(sum / c.dim + kEpsilon);
  }
  const float* angles = &h.cos_sin[Index(static_cast<int64_t>(position) * c.dim)];
  for (int32_t d = 0; d < c.dim / 2; ++d) {
    const double cosine = angles[d], sine = angles[d + c.dim / 2];
    y[Index(d)] = x[Index(d)] * cosine - x[Index(d + c.dim / 2)] * sine;
    y[Index(d + c.dim / 2)] = x[Index(d + c.dim / 2)] * cosine + x[Index(d)] * sine;
  }
  return y;
}

std::vector<float> RotationTable(const DecodeShape& c, int32_t positions) {
  std::vector<float> table;
  for (int32_t p = 0; p < positions; ++p) {
    for (int32_t half = 0; half < 2; ++half) {
      for (int32_t d = 0; d < c.dim / 2; ++d) {
        const double angle = p * std::pow(10000.0, -2.0 * d / c.dim);
        table.push_back(static_cast<float>(half == 0 ? std::cos(angle) : std::sin(angle)));
      }
    }
  }
  return table;
}

// Checks what the step must have written to the pool, and that it wrote nothing else.
void CheckPool(const DecodeShape& c, const DecodeStep& h, const std::vector<uint8_t>& after) {
  std::vector<uint8_t> rest = after;
  const int64_t element = static_cast<int64_t>(DTypeBytes(c.kv));
  for (size_t s = 0; s < h.positions.size(); ++s) {
    if (h.positions[s] < 0) continue;
    for (int32_t head = 0; head < c.kv_heads; ++head) {
      for (int part = 0; part < 2; ++part) {
        const int64_t from = (static_cast<int64_t>(s) * (c.heads + 2 * c.kv_heads) + c.heads +
                              (part == 0 ? 0 : c.kv_heads) + head) *
                             c.dim;
        const std::vector<double> k = RotatedHead(c, h, from, h.k_norm, h.positions[s]);
        const int64_t at = PoolAt(c, h.slots[s], head, part);
        const float scale = part == 0 ? kKScale : kVScale;
        for (int32_t d = 0; d < c.dim; ++d) {
          const double should = part == 0 ? k[Index(d)] : Load(h.qkv, from + d, DType::kBF16, 1.0f);
          const double is = Load(after, at + d, c.kv, scale);
          const double room = c.kv == DType::kBF16 ? 5e-3 : 7e-2;
          ASSERT_NEAR(is, should, room * std::fabs(should) + (c.kv == DType::kBF16 ? 1e-5 : 2e-3))
              << (part == 0 ? "k" : "v") << " of row " << s << " head " << head;
        }
        std::memcpy(&rest[Index(at * element)], &h.pool[Index(at * element)],
                    Index(c.dim * element));
      }
    }
  }
  EXPECT_TRUE(rest == h.pool) << "a slot was written that is not the step's";
}

// out - reference| / |reference| over all heads, and of the worst one.
struct Errors {
  double all = 0, worst = 0;
};

// Attention of one head of row `r`, which is not padding, over the keys in `pool`.
std::vector<double> AttendedHead(const DecodeShape& c, const DecodeStep& h, size_t r, int32_t head,
                                 const std::vector<uint8_t>& pool) {
  const size_t dim = Index(c.dim);
  const int64_t row = static_cast<int64_t>(r) * (c.heads + 2 * c.kv_heads) * c.dim;
  const std::vector<double> q = RotatedHead(c, h, row + head * c.dim, h.q_norm, h.positions[r]);
  const auto s = Index(h.row_sequences[r]);
  const int32_t context = h.row_contexts[r];
  const int32_t low = c.window > 0 ? std::max(0, context - c.window) : 0;
  const int32_t kv_head = head / (c.heads / c.kv_heads);
  const auto slot = [&](int32_t key) {
    return h.tables[Index(h.spans[s].table_begin + key / c.block_tokens)] * c.block_tokens +
           key % c.block_tokens;
  };
  std::vector<double> weights, sum(dim);
  double top = -1e300, total = 0;
  for (int32_t key = low; key < context; ++key) {
    const int64_t at = PoolAt(c, slot(key), kv_head, 0);
    double dot = 0;
    for (size_t d = 0; d < dim; ++d)
      dot += q[d] * Load(pool, at + static_cast<int64_t>(d), c.kv, kKScale);
    weights.push_back(dot / std::sqrt(static_cast<double>(c.dim)));
    top = std::max(top, weights.back());
  }
  for (int32_t key = low; key < context; ++key) {
    const double weight = std::exp(weights[Index(key - low)] - top);
    total += weight;
    const int64_t at = PoolAt(c, slot(key), kv_head, 1);
    for (size_t d = 0; d < dim; ++d)
      sum[d] += weight * Load(pool, at + static_cast<int64_t>(d), c.kv, kVScale);
  }
  for (double& x : sum) x /= total;
  return sum;
}

Errors CheckOutput(const DecodeShape& c, const DecodeStep& h, const std::vector<uint8_t>& pool,
                   const std::vector<uint8_t>& out) {
  const size_t dim = Index(c.dim);
  std::vector<double> error(h.positions.size() * Index(c.heads)), norm(error.size());
  std::atomic<size_t> next{0};
  std::vector<std::thread> threads;
  const auto work = [&] {
    for (size_t job = next++; job < error.size(); job = next++) {
      const size_t s = job / Index(c.heads);
      const bool padding = h.positions[s] < 0;
      std::vector<double> should;
      if (!padding)
        should = AttendedHead(c, h, s, static_cast<int32_t>(job % Index(c.heads)), pool);
      for (size_t d = 0; d < dim; ++d) {
        float is;
        const auto at = static_cast<int64_t>(job * dim + d);
        if (c.out == DType::kBF16) {
          is = static_cast<float>(Load(out, at, DType::kBF16, 1.0f));
        } else {
          std::memcpy(&is, &out[Index(4 * at)], 4);
        }
        if (padding) {  // must be unchanged
          error[job] += std::isnan(is) ? 0.0 : 1e30;
          norm[job] = 1e-30;
          continue;
        }
        const double difference = std::isfinite(is) ? is - should[d] : 1e30;
        error[job] += difference * difference;
        norm[job] += should[d] * should[d];
      }
    }
  };
  for (unsigned t = 0; t < std::max(1U, std::thread::hardware_concurrency()); ++t)
    threads.emplace_back(work);
  for (std::thread& t : threads) t.join();
  Errors result;
  for (size_t job = 0; job < error.size(); ++job)
    result.worst = std::max(result.worst, std::sqrt(error[job] / norm[job]));
  result.all = std::sqrt(std::accumulate(error.begin(), error.end(), 0.0) /
                         std::accumulate(norm.begin(), norm.end(), 1e-300));
  return result;
}

}  // namespace

DecodeStep MakeDecodeStep(const DecodeShape& c, const std::vector<int32_t>& contexts, uint64_t seed,
                          int64_t blocks, const std::vector<int32_t>& rows) {
  DecodeStep h;
  std::mt19937_64 random(seed);
  std::normal_distribution<float> normal;
  const RandomRows keys(c.kv, kKScale, random()), values(c.kv, kVScale, random());
  std::vector<int32_t> ids(Index(blocks));
  std::iota(ids.begin(), ids.end(), 0);
  std::shuffle(ids.begin(), ids.end(), random);
  h.blocks = blocks;
  h.pool.assign(Index(blocks * c.kv_heads * 2 * c.block_tokens * c.dim) * DTypeBytes(c.kv), 0xff);
  h.cos_sin = RotationTable(c, std::max(1, *std::max_element(contexts.begin(), contexts.end())));
  for (int32_t d = 0; d < c.dim; ++d) {
    h.q_norm.push_back(1.0f + 0.3f * normal(random));
    h.k_norm.push_back(1.0f + 0.3f * normal(random));
  }
  for (size_t s = 0; s < contexts.size(); ++s) {
    const int32_t context = contexts[s];
    const int32_t count = std::min(rows.empty() ? 1 : rows[s], std::max(context, 1));
    RowSpan span;
    span.row_begin = static_cast<int32_t>(h.positions.size());
    span.num_rows = context == kNoRows ? 0 : count;
    span.context_len = std::max(context, 0);
    span.table_begin = static_cast<int32_t>(h.tables.size());
    for (int32_t row = 0; row < c.most_rows; ++row) {
      const int32_t sees = context < 1 || row >= count ? 0 : context - count + 1 + row;
      h.row_sequences.push_back(static_cast<int32_t>(s));
      h.row_contexts.push_back(sees);
      h.positions.push_back(sees - 1);
      h.slots.push_back(0);
    }
    for (int32_t t = 0; t < context; ++t) {
      if (t % c.block_tokens == 0) {
        h.tables.push_back(ids.back());
        ids.pop_back();
      }
      const int32_t slot = h.tables.back() * c.block_tokens + t % c.block_tokens;
      if (t >= context - count) {
        h.slots[Index(span.row_begin + t - context + count)] = slot;
        continue;
      }
      for (int32_t head = 0; head < c.kv_heads; ++head) {
        for (int part = 0; part < 2; ++part) {
          const int64_t at = PoolAt(c, slot, head, part);
          (part == 0 ? keys : values).Row(&h.pool[Index(at) * DTypeBytes(c.kv)], c.dim, random);
        }
      }
    }
    h.spans.push_back(span);
    const int64_t width = static_cast<int64_t>(c.heads + 2 * c.kv_heads) * c.dim;
    const int64_t begin = span.row_begin * width;
    h.qkv.resize(Index(2 * (begin + c.most_rows * width)), 0xff);
    if (context < 1) continue;
    for (int64_t i = 0; i < count * width; ++i) {
      const float deviation = i % width < static_cast<int64_t>(c.heads) * c.dim ? 2.0f : 1.0f;
      Store(h.qkv, begin + i, deviation * normal(random), DType::kBF16, 1.0f);
    }
  }
  return h;
}

int64_t BlocksOf(const DecodeShape& c, const std::vector<int32_t>& contexts) {
  int64_t blocks = 3;
  for (int32_t context : contexts)
    blocks += (std::max(context, 0) + c.block_tokens - 1) / c.block_tokens;
  return blocks;
}

DecodeRunner::DecodeRunner(const DecodeShape& c, int32_t sequences, int32_t max_context,
                           int64_t blocks, int launches)
    : c_(c),
      sequences_(Index(sequences)),
      rows_(sequences_ * Index(c.most_rows)),
      launches_(launches),
      out_bytes_(rows_ * Index(c.heads * c.dim) * DTypeBytes(c.out)),
      pool_bytes_(Index(blocks * c.kv_heads * 2 * c.block_tokens * c.dim) * DTypeBytes(c.kv)),
      spans_(sequences_ * sizeof(RowSpan)),
      tables_(Index(blocks) * 4),
      positions_(rows_ * 4),
      slots_(rows_ * 4),
      qkv_(rows_ * Index((c.heads + 2 * c.kv_heads) * c.dim) * 2),
      pool_(pool_bytes_),
      q_norm_(Index(c.dim) * 4),
      k_norm_(Index(c.dim) * 4),
      cos_sin_(Index(static_cast<int64_t>(max_context) * c.dim) * 4),
      out_(out_bytes_ * Index(launches)) {
  AttentionConfig config;
  config.num_heads = c.heads;
  config.num_kv_heads = c.kv_heads;
  config.head_dim = c.dim;
  config.block_tokens = c.block_tokens;
  config.kv = c.kv;
  config.out = c.out;
  config.scale = 1.0f / std::sqrt(static_cast<float>(c.dim));
  config.window = c.window;
  config.max_sequences = sequences;
  config.max_rows = static_cast<int32_t>(rows_);
  config.max_decode_tokens = c.mixed ? 1 : c.most_rows;
  config.split_tokens = c.split;
  config.decode_ctas = c.ctas;
  auto made = Attention::Create(config);
  if (!made) {
    error_ = made.error().ToString();
    return;
  }
  attention_ = std::move(*made);
  workspace_ = std::make_unique<DeviceBytes>(attention_->workspace_bytes());
  cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking);
  Note(attention_->ZeroWorkspace(workspace_->as<void>(), stream_));
  auto layer = attention_->MakeLayer(pool_.as<void>(), blocks);
  if (!layer) {
    error_ = layer.error().ToString();
    return;
  }
  layer_ = *layer;
  if (!c.mixed) Capture();
}
DecodeRunner::~DecodeRunner() {
  if (graph_ != nullptr) cudaGraphExecDestroy(graph_);
  if (stream_ != nullptr) cudaStreamDestroy(stream_);
}

void DecodeRunner::Step(const DecodeStep& h, bool check) {
  ASSERT_EQ(error_, "");
  const auto upload = [&](const DeviceBytes& to, const auto& from) {
    if (from.empty()) return;
    ASSERT_EQ(cudaMemcpyAsync(to.as<void>(), from.data(), from.size() * sizeof(from[0]),
                              cudaMemcpyHostToDevice, stream_),
              cudaSuccess);
  };
  upload(spans_, h.spans);
  upload(tables_, h.tables);
  upload(positions_, h.positions);
  upload(slots_, h.slots);
  upload(qkv_, h.qkv);
  upload(pool_, h.pool);
  upload(q_norm_, h.q_norm);
  upload(k_norm_, h.k_norm);
  upload(cos_sin_, h.cos_sin);
  cudaMemsetAsync(out_.as<void>(), 0xff, out_bytes_ * Index(launches_), stream_);
  if (c_.mixed) {
    Launch(h);
    ASSERT_EQ(error_, "");
  } else {
    ASSERT_EQ(cudaGraphLaunch(graph_, stream_), cudaSuccess);
  }
  std::vector<uint8_t> outs(out_bytes_ * Index(launches_)), pool(pool_bytes_);
  ASSERT_EQ(cudaStreamSynchronize(stream_), cudaSuccess);
  cudaMemcpy(outs.data(), out_.as<void>(), outs.size(), cudaMemcpyDeviceToHost);
  cudaMemcpy(pool.data(), pool_.as<void>(), pool.size(), cudaMemcpyDeviceToHost);
  const std::vector<uint8_t> out(outs.begin(),
                                 outs.begin() + static_cast<std::ptrdiff_t>(out_bytes_));
  for (int i = 1; i < launches_; ++i) {
    ASSERT_EQ(std::memcmp(out.data(), &outs[out_bytes_ * Index(i)], out_bytes_), 0)
        << "launch " << i << " gave other bits";
  }
  if (!last_.empty() && !check) {
    ASSERT_TRUE(last_ == out) << "a replay gave other bits";
  }
  last_ = out;
  if (!check) return;
  CheckPool(c_, h, pool);
  const Errors errors = CheckOutput(c_, h, pool, out);
  std::printf("  %.2e (worst %.2e)\n", errors.all, errors.worst);
  EXPECT_LT(errors.all, 1e-2);
  EXPECT_LT(errors.worst, 3e-2);
}

AttentionBatch DecodeRunner::Batch() const {
  AttentionBatch batch;
  batch.sequences = spans_.as<RowSpan>();
  batch.block_tables = tables_.as<int32_t>();
  batch.num_sequences = static_cast<int32_t>(sequences_);
  return batch;
}

RopeAppendCall DecodeRunner::Rope() const {
  RopeAppendCall rope;
  rope.qkv = qkv_.as<void>();
  rope.qkv_type = DType::kBF16;
  rope.qkv_row_stride = static_cast<int64_t>(c_.heads + 2 * c_.kv_heads) * c_.dim;
  rope.q_out = qkv_.as<void>();
  rope.q_out_row_stride = rope.qkv_row_stride;
  rope.cos_sin = cos_sin_.as<float>();
  rope.q_norm = c_.norm ? q_norm_.as<float>() : nullptr;
  rope.k_norm = c_.norm ? k_norm_.as<float>() : nullptr;
  rope.norm_epsilon = kEpsilon;
  rope.rows = static_cast<int32_t>(rows_);
  rope.num_heads = c_.heads;
  rope.positions = positions_.as<int32_t>();
  rope.kv_slots = slots_.as<int32_t>();
  rope.kv.layer = pool_.as<void>();
  rope.kv.dtype = c_.kv;
  rope.kv.num_kv_heads = c_.kv_heads;
  rope.kv.head_dim = c_.dim;
  rope.kv.block_tokens = c_.block_tokens;
  rope.k_scale = kKScale;
  rope.v_scale = kVScale;
  return rope;
}

AttentionCall DecodeRunner::CallOf(int launch) const {
  AttentionCall call;
  call.q = qkv_.as<void>();
  call.q_row_stride = static_cast<int64_t>(c_.heads + 2 * c_.kv_heads) * c_.dim;
  call.out = out_.as<uint8_t>() + out_bytes_ * Index(launch);
  call.out_row_stride = static_cast<int64_t>(c_.heads) * c_.dim;
  call.layer = &layer_;
  call.k_scale = kKScale;
  call.v_scale = kVScale;
  return call;
}

void DecodeRunner::Launch(const DecodeStep& h) {
  const RopeAppendCall rope = Rope();
  AttentionCall call = CallOf(0);
  void* const workspace = workspace_->as<void>();
  const Result<bool> planned =
      attention_->PlanMixed(Batch(), rope.positions, rope.rows, workspace, stream_);
  if (!planned) error_ = planned.error().ToString();
  call.after_plan = planned && *planned;
  Note(attention_->RunMixed(Batch(), h.spans, rope, call, workspace, stream_));
}

void DecodeRunner::Capture() {
  const RopeAppendCall rope = Rope();
  void* const workspace = workspace_->as<void>();
  cudaGraph_t graph = nullptr;
  cudaStreamBeginCapture(stream_, cudaStreamCaptureModeThreadLocal);
  const Result<bool> planned =
      attention_->PlanDecode(Batch(), rope.positions, rope.rows, workspace, stream_);
  if (!planned) error_ = planned.error().ToString();
  for (int i = 0; i < launches_; ++i) {
    AttentionCall call = CallOf(i);
    call.after_plan = i == 0 && planned && *planned;
    Note(attention_->RunDecode(Batch(), rope, call, workspace, stream_));
  }
  if (cudaStreamEndCapture(stream_, &graph) != cudaSuccess ||
      cudaGraphInstantiate(&graph_, graph, 0) != cudaSuccess) {
    error_ += " no graph: " + std::string(cudaGetErrorString(cudaGetLastError()));
  }
  if (graph != nullptr) cudaGraphDestroy(graph);
}

}  // namespace aisp::cuda
