// Times attention on one GPU: decode compared with a read-only memory stream measured in the same
// run, prefill with the tensor cores' peak. Random data; launches in CUDA graphs; layers rotate
// through more memory than the L2 cache holds.
//
//   attention_bench [decode|prefill|all] [repetitions] [part of a load's name]
//                   [CTAs per multiprocessor in RunDecode]
//
// Decode is timed three ways: the attention of a planned step alone; the same with RoPE and append
// before it; RunDecode, which does all of this.
#include <cuda_runtime.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <numeric>
#include <random>
#include <string>
#include <vector>

#include "kernels/cuda/attention/attention.h"

namespace aisp::cuda {
#ifdef AISP_ATTENTION_TRACE
cudaError_t ReadDecodeTrace(uint64_t (*to)[8]);
#endif
namespace {

void Must(cudaError_t code, const char* what) {
  if (code == cudaSuccess) return;
  std::printf("%s: %s\n", what, cudaGetErrorString(code));
  std::exit(1);
}
template <typename T>
T Must(Result<T> result) {
  if (result) return std::move(*result);
  std::printf("%s\n", result.error().ToString().c_str());
  std::exit(1);
}
void Must(const Status& status) {
  if (status) return;
  std::printf("%s\n", status.error().ToString().c_str());
  std::exit(1);
}

struct Memory {
  explicit Memory(size_t bytes) : bytes(bytes) { Must(cudaMalloc(&data, bytes), "cudaMalloc"); }
  ~Memory() { cudaFree(data); }
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;
  void* data = nullptr;
  size_t bytes = 0;
};

__device__ uint32_t Mix(uint64_t x) {
  x ^= x >> 33;
  x *= 0xff51afd7ed558ccdULL;
  x ^= x >> 33;
  x *= 0xc4ceb9fe1a85ec53ULL;
  return static_cast<uint32_t>(x >> 32);
}

// Roughly normal (a sum of four uniforms), as bf16 or as e4m3 below 32.
__global__ void FillRandom(uint16_t* to, size_t words, bool fp8, uint64_t seed) {
  for (size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x; i < words;
       i += static_cast<size_t>(gridDim.x) * blockDim.x) {
    const uint32_t a = Mix(i * 2 + seed * 0x9e3779b97f4a7c15ULL);
    const uint32_t b = Mix(i * 2 + 1 + seed * 0x9e3779b97f4a7c15ULL);
    if (fp8) {
      to[i] =
          static_cast<uint16_t>((a & 0x8080) | ((0x20 + (a & 0x1f)) << 8) | (0x20 + (b & 0x1f)));
    } else {
      const float u = ((a & 0xffff) + (a >> 16) + (b & 0xffff) + (b >> 16)) * (1.0f / 65536) - 2.0f;
      to[i] = static_cast<uint16_t>(__float_as_uint(u * 1.73f) >> 16);
    }
  }
}

__global__ void __launch_bounds__(512) ReadAll(const uint4* from, size_t vectors, uint32_t* sink) {
  uint32_t sum = 0;
  const size_t step = static_cast<size_t>(gridDim.x) * blockDim.x;
  size_t i = blockIdx.x * static_cast<size_t>(blockDim.x) + threadIdx.x;
  for (; i + 7 * step < vectors; i += 8 * step) {
    uint4 v[8];
#pragma unroll
    for (int k = 0; k < 8; ++k) v[k] = __ldcs(from + i + k * step);
#pragma unroll
    for (int k = 0; k < 8; ++k) sum += v[k].x ^ v[k].y ^ v[k].z ^ v[k].w;
  }
  if (sum == 0x12345678) *sink = sum;
}

// The median of `repetitions` timings of `work`, in microseconds.
double Time(cudaStream_t stream, int repetitions, const std::function<void()>& work) {
  cudaEvent_t begin, end;
  cudaEventCreate(&begin);
  cudaEventCreate(&end);
  work();
  work();
  std::vector<double> times;
  for (int i = 0; i < repetitions; ++i) {
    cudaEventRecord(begin, stream);
    work();
    cudaEventRecord(end, stream);
    Must(cudaEventSynchronize(end), "timing");
    float ms = 0;
    cudaEventElapsedTime(&ms, begin, end);
    times.push_back(1e3 * ms);
  }
  std::sort(times.begin(), times.end());
  return times[times.size() / 2];
}

#ifdef AISP_ATTENTION_TRACE
// Times at which the CTAs of the last launch passed: entry, predecessor done, first tile loaded,
// last tile done, splits merged, end.
void PrintTrace() {
  static uint64_t trace[512][8];
  Must(ReadDecodeTrace(trace), "trace");
  uint64_t start = ~0ULL;
  for (int c = 0; c < 132; ++c) start = std::min(start, trace[c][1]);
  std::printf("   trace us (min median max):");
  for (int what = 0; what < 6; ++what) {
    std::vector<double> at;
    for (int c = 0; c < 132; ++c) {
      if (trace[c][what] + 1000000 > start)
        at.push_back(1e-3 * (static_cast<double>(trace[c][what]) - static_cast<double>(start)));
    }
    std::sort(at.begin(), at.end());
    if (!at.empty())
      std::printf("  %d: %.2f %.2f %.2f", what, at.front(), at[at.size() / 2], at.back());
  }
  std::printf("\n");
}
#endif

struct Load {
  const char* name = "";
  std::vector<int32_t> rows, contexts;
  int32_t block_tokens = 64;
  int32_t heads = 32, kv_heads = 8, head_dim = 128;
  int32_t decode_tokens = 1;
  DType kv = DType::kBF16;
  StepKind kind = StepKind::kDecode;
};

enum class How : uint8_t { kAttention, kRopeAndAttention, kOneLaunch };

struct Timing {
  double us = 0;
  double bytes = 0;  // keys and values, read once
  double flops = 0;  // of the scores and values under the causal mask
  std::string description;
};

// Long: one load, set up in order as the engine would.
Timing Measure(const Load& load, int repetitions, cudaStream_t stream, How how = How::kAttention,
               int32_t decode_ctas = 0) {
  AttentionConfig config;
  config.decode_ctas = decode_ctas;
  config.num_heads = load.heads;
  config.num_kv_heads = load.kv_heads;
  config.head_dim = load.head_dim;
  config.block_tokens = load.block_tokens;
  config.kv = load.kv;
  config.scale = 1.0f / std::sqrt(static_cast<float>(load.head_dim));
  config.max_sequences = static_cast<int32_t>(load.rows.size());
  config.max_rows = std::accumulate(load.rows.begin(), load.rows.end(), 0);
  config.max_decode_tokens = load.decode_tokens;
  const std::unique_ptr<Attention> attention = Must(Attention::Create(config));

  std::vector<RowSpan> spans;
  std::vector<int32_t> tables, positions;
  Timing timing;
  timing.description = attention->Describe();
  int32_t rows = 0;
  for (size_t s = 0; s < load.rows.size(); ++s) {
    const int32_t n = load.rows[s], context = load.contexts[s];
    spans.push_back({rows, n, context, static_cast<int32_t>(tables.size())});
    rows += n;
    positions.push_back(context - 1);
    for (int32_t t = 0; t < context; t += load.block_tokens)
      tables.push_back(static_cast<int32_t>(tables.size()));
    timing.bytes +=
        2.0 * context * load.kv_heads * load.head_dim * static_cast<double>(DTypeBytes(load.kv));
    timing.flops += 4.0 * load.heads * load.head_dim * n * (context - n + (n + 1) / 2.0);
  }
  std::shuffle(tables.begin(), tables.end(), std::mt19937(3));
  const int64_t blocks = static_cast<int64_t>(tables.size());
  const size_t layer_bytes = static_cast<size_t>(blocks) * load.block_tokens * load.head_dim *
                             load.kv_heads * 2 * DTypeBytes(load.kv);
  const size_t layers = std::clamp<size_t>((768u << 20) / layer_bytes, 1, 64);
  const int64_t row = static_cast<int64_t>(load.heads + 2 * load.kv_heads) * load.head_dim;
  const size_t q_bytes = static_cast<size_t>(rows * row) * 2;
  Memory pool(layers * layer_bytes), q(q_bytes), out(q_bytes),
      workspace(attention->workspace_bytes());
  // Slots of a step in which every sequence has one row, and the RoPE angles up to the longest
  // context.
  std::vector<int32_t> slots;
  for (size_t s = 0; s < spans.size(); ++s) {
    slots.push_back(tables[spans[s].table_begin + positions[s] / load.block_tokens] *
                        load.block_tokens +
                    positions[s] % load.block_tokens);
  }
  Memory angles((*std::max_element(positions.begin(), positions.end()) + 1) * load.head_dim * 4ULL);
  Memory device_positions(positions.size() * 4), device_slots(slots.size() * 4);
  FillRandom<<<1056, 256, 0, stream>>>(static_cast<uint16_t*>(angles.data), angles.bytes / 2, false,
                                       3);
  Memory device_spans(spans.size() * sizeof(RowSpan)), device_tables(tables.size() * 4);
  FillRandom<<<1056, 256, 0, stream>>>(static_cast<uint16_t*>(pool.data), pool.bytes / 2,
                                       load.kv != DType::kBF16, 1);
  FillRandom<<<1056, 256, 0, stream>>>(static_cast<uint16_t*>(q.data), q_bytes / 2, false, 2);
  cudaMemcpyAsync(device_spans.data, spans.data(), device_spans.bytes, cudaMemcpyHostToDevice,
                  stream);
  cudaMemcpyAsync(device_tables.data, tables.data(), device_tables.bytes, cudaMemcpyHostToDevice,
                  stream);
  cudaMemcpyAsync(device_positions.data, positions.data(), device_positions.bytes,
                  cudaMemcpyHostToDevice, stream);
  cudaMemcpyAsync(device_slots.data, slots.data(), device_slots.bytes, cudaMemcpyHostToDevice,
                  stream);
  Must(attention->ZeroWorkspace(workspace.data, stream));

  RopeAppendCall rope;
  rope.qkv = rope.q_out = q.data;
  rope.qkv_type = DType::kBF16;
  rope.qkv_row_stride = rope.q_out_row_stride = row;
  rope.cos_sin = static_cast<const float*>(angles.data);
  rope.rows = rows;
  rope.num_heads = load.heads;
  rope.positions = static_cast<const int32_t*>(device_positions.data);
  rope.kv_slots = static_cast<const int32_t*>(device_slots.data);
  rope.kv.dtype = load.kv;
  rope.kv.num_kv_heads = load.kv_heads;
  rope.kv.head_dim = load.head_dim;
  rope.kv.block_tokens = load.block_tokens;

  AttentionBatch batch;
  batch.sequences = static_cast<const RowSpan*>(device_spans.data);
  batch.block_tables = static_cast<const int32_t*>(device_tables.data);
  batch.num_sequences = config.max_sequences;
  std::vector<KvLayer> maps;
  for (size_t l = 0; l < layers; ++l) {
    maps.push_back(
        Must(attention->MakeLayer(static_cast<uint8_t*>(pool.data) + l * layer_bytes, blocks)));
  }
  const size_t calls =
      load.kind == StepKind::kDecode ? std::max<size_t>(layers, 16) : std::max<size_t>(layers, 4);
  Must(attention->PlanStep(batch, load.kind, workspace.data, stream));
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  Must(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
  for (size_t i = 0; i < calls; ++i) {
    AttentionCall call;
    call.q = q.data;
    call.out = out.data;
    call.q_row_stride = row;
    call.out_row_stride = static_cast<int64_t>(load.heads) * load.head_dim;
    call.layer = &maps[i % layers];
    rope.kv.layer = call.layer->base;
    if (how == How::kOneLaunch) {
      if (i == 0) {
        call.after_plan =
            Must(attention->PlanDecode(batch, rope.positions, rope.rows, workspace.data, stream));
      }
      Must(attention->RunDecode(batch, rope, call, workspace.data, stream));
      continue;
    }
    if (how == How::kRopeAndAttention) Must(RopeAppend(rope, stream));
    Must(attention->Run(batch, load.kind, call, workspace.data, stream));
  }
  Must(cudaStreamEndCapture(stream, &graph), "end capture");
  Must(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  timing.us = Time(stream, repetitions, [&] { Must(cudaGraphLaunch(exec, stream), "launch"); }) /
              static_cast<double>(calls);
  Must(cudaStreamSynchronize(stream), "finish");
#ifdef AISP_ATTENTION_TRACE
  if (load.kind == StepKind::kDecode) PrintTrace();
#endif
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  return timing;
}

Load Decode(const char* name, int32_t batch, int32_t context, DType kv, int32_t tokens = 1) {
  Load load;
  load.name = name;
  load.rows.assign(static_cast<size_t>(batch), tokens);
  load.contexts.assign(static_cast<size_t>(batch), context);
  load.kv = kv;
  load.decode_tokens = tokens;
  return load;
}

Load Ragged(const char* name, DType kv) {
  Load load = Decode(name, 64, 0, kv);
  std::mt19937 random(11);
  for (int32_t& context : load.contexts) {
    context = static_cast<int32_t>(64.0 * std::pow(2.0, 9.0 * (random() % 1000) / 1000.0)) + 1;
  }
  return load;
}

Load Prefill(const char* name, int32_t sequences, int32_t rows, int32_t context, DType kv,
             int32_t block = 64) {
  Load load;
  load.name = name;
  load.rows.assign(static_cast<size_t>(sequences), rows);
  load.contexts.assign(static_cast<size_t>(sequences), context);
  load.kv = kv;
  load.block_tokens = block;
  load.kind = StepKind::kPrefill;
  return load;
}

bool Wanted(const Load& load, const std::string& filter) {
  return std::string(load.name).find(filter) != std::string::npos;
}

// Long: most of it is the list of loads.
void BenchDecode(int repetitions, cudaStream_t stream, double stream_rate,
                 const std::string& filter, int32_t decode_ctas) {
  constexpr DType kB = DType::kBF16, kF = DType::kF8E4M3;
  std::vector<Load> loads = {
      Decode("1 x 128", 1, 128, kB),
      Decode("1 x 1k", 1, 1024, kB),
      Decode("1 x 8k", 1, 8192, kB),
      Decode("1 x 32k", 1, 32768, kB),
      Decode("1 x 128k", 1, 131072, kB),
      Decode("8 x 1k", 8, 1024, kB),
      Decode("16 x 1k", 16, 1024, kB),
      Decode("32 x 1k", 32, 1024, kB),
      Decode("64 x 1k", 64, 1100, kB),
      Decode("128 x 1k", 128, 1024, kB),
      Decode("256 x 1k", 256, 1200, kB),
      Decode("32 x 8k", 32, 8192, kB),
      Decode("8 x 128k", 8, 131072, kB),
      Ragged("64 ragged 64..32k", kB),
      Decode("1 x 1k fp8", 1, 1024, kF),
      Decode("8 x 1k fp8", 8, 1024, kF),
      Decode("32 x 1k fp8", 32, 1024, kF),
      Decode("64 x 1k fp8", 64, 1100, kF),
      Decode("128 x 1k fp8", 128, 1024, kF),
      Decode("256 x 1k fp8", 256, 1200, kF),
      Decode("32 x 8k fp8", 32, 8192, kF),
      Decode("8 x 128k fp8", 8, 131072, kF),
      Ragged("64 ragged 64..32k fp8", kF),
      Decode("32 x 8k, 4 tokens", 32, 8192, kB, 4),
      Decode("32 x 8k, 8 tokens", 32, 8192, kB, 8),
      Decode("32 x 8k, 16 tokens", 32, 8192, kB, 16),
      Decode("32 x 8k fp8, 4 tokens", 32, 8192, kF, 4),
      Decode("32 x 8k fp8, 8 tokens", 32, 8192, kF, 8),
      Decode("256 x 256", 256, 256, kB),
  };
  loads.push_back(Decode("32 x 8k, blocks of 16", 32, 8192, kB));
  loads.back().block_tokens = 16;
  loads.push_back(Decode("32 x 8k, 8/8 heads", 32, 8192, kB));
  loads.back().heads = 8;
  loads.push_back(Decode("32 x 8k, head_dim 64", 32, 8192, kB));
  loads.back().head_dim = 64;
  loads.push_back(Decode("32 x 8k fp8, head_dim 64", 32, 8192, kF));
  loads.back().head_dim = 64;
  loads.push_back(Decode("32 x 8k, head_dim 256", 32, 8192, kB));
  loads.back().head_dim = 256;
  loads.back().kv_heads = 4;
  std::string description;
  for (const Load& load : loads) {
    if (!Wanted(load, filter)) continue;
    const Timing t = Measure(load, repetitions, stream);
    if (t.description != description) std::printf("  [%s]\n", t.description.c_str());
    description = t.description;
    const auto share = [&](double us) { return 100 * t.bytes / us * 1e-6 / stream_rate; };
    std::printf("decode %-26s %9.2f us  %6.3f TB/s  %5.1f %% of the stream", load.name, t.us,
                t.bytes / t.us * 1e-6, share(t.us));
    if (load.decode_tokens == 1 && load.head_dim <= 128) {
      const double both = Measure(load, repetitions, stream, How::kRopeAndAttention).us;
      const double one = Measure(load, repetitions, stream, How::kOneLaunch, decode_ctas).us;
      std::printf("; with RoPE %9.2f us; one launch %9.2f us %6.3f TB/s %5.1f %%", both, one,
                  t.bytes / one * 1e-6, share(one));
    }
    std::printf("\n");
    std::fflush(stdout);
  }
}

void BenchPrefill(int repetitions, cudaStream_t stream, const std::string& filter) {
  constexpr DType kB = DType::kBF16, kF = DType::kF8E4M3;
  std::vector<Load> loads = {
      Prefill("1 x 512", 1, 512, 512, kB),
      Prefill("1 x 1k", 1, 1024, 1024, kB),
      Prefill("1 x 2k", 1, 2048, 2048, kB),
      Prefill("1 x 8k", 1, 8192, 8192, kB),
      Prefill("1 x 8k, blocks of 16", 1, 8192, 8192, kB, 16),
      Prefill("1 x 8k, blocks of 128", 1, 8192, 8192, kB, 128),
      Prefill("1 x 16k", 1, 16384, 16384, kB),
      Prefill("1 x 32k", 1, 32768, 32768, kB),
      Prefill("8 x 1k", 8, 1024, 1024, kB),
      Prefill("4 x 512 after 8k", 4, 512, 8704, kB),
      Prefill("1 x 2k after 30k", 1, 2048, 32768, kB),
      Prefill("1 x 8k fp8", 1, 8192, 8192, kF),
      Prefill("8 x 1k fp8", 8, 1024, 1024, kF),
      Prefill("1 x 2k after 30k fp8", 1, 2048, 32768, kF),
  };
  loads.push_back(Prefill("1 x 8k, 32/32 heads", 1, 8192, 8192, kB));
  loads.back().kv_heads = 32;
  loads.push_back(Prefill("1 x 8k, head_dim 64", 1, 8192, 8192, kB));
  loads.back().head_dim = 64;
  for (const Load& load : loads) {
    if (!Wanted(load, filter)) continue;
    const Timing t = Measure(load, std::max(3, repetitions / 2), stream);
    std::printf("prefill %-26s %10.1f us  %6.1f TFLOP/s\n", load.name, t.us, t.flops / t.us * 1e-6);
    std::fflush(stdout);
  }
}

int Main(int argc, char** argv) {
  const std::string what = argc > 1 ? argv[1] : "all";
  const int repetitions = argc > 2 ? std::atoi(argv[2]) : 11;
  const std::string filter = argc > 3 ? argv[3] : "";
  cudaStream_t stream;
  Must(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
  if (what != "prefill") {
    double rate = 0;
    {
      Memory big(4ULL << 30), sink(16);
      FillRandom<<<1056, 256, 0, stream>>>(static_cast<uint16_t*>(big.data), big.bytes / 2, false,
                                           5);
      double us = 1e30;
      for (int blocks : {132 * 2, 132 * 4, 132 * 8, 132 * 32}) {
        us = std::min(us, Time(stream, 7, [&] {
                        ReadAll<<<blocks, 512, 0, stream>>>(static_cast<const uint4*>(big.data),
                                                            big.bytes / 16,
                                                            static_cast<uint32_t*>(sink.data));
                      }));
      }
      rate = static_cast<double>(big.bytes) / us * 1e-6;
      std::printf("read-only stream %.3f TB/s\n", rate);
    }
    BenchDecode(repetitions, stream, rate, filter, argc > 4 ? std::atoi(argv[4]) : 0);
  }
  if (what != "decode") BenchPrefill(repetitions, stream, filter);
  return 0;
}

}  // namespace
}  // namespace aisp::cuda

int main(int argc, char** argv) { return aisp::cuda::Main(argc, argv); }
