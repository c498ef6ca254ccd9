// LoRA adapters on the GPU: kernels against sums in double precision, models against checkpoints
// with the adapter merged, and an engine's graphs against the engine on the CPU.
#include <algorithm>
#include <cmath>
#include <map>

#include "engine/async_executor.h"
#include "engine/engine.h"
#include "model/lora_adapter.h"
#include "tests/kernels/cuda/gpu_ops.h"
#include "tests/model/golden.h"
#include "tests/model/lora_files.h"
#include "tests/model/unequal_chunks.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

const std::vector<std::string> kAll = {
    "q_proj",    "k_proj",   "v_proj",   "o_proj",    "gate_proj",          "up_proj",
    "down_proj", "q_a_proj", "q_b_proj", "kv_b_proj", "kv_a_proj_with_mqa",
};

// ---- kernels ----

struct LayerCase {
  WeightFormat format = WeightFormat::kCompute;
  Epilogue epilogue = Epilogue::kStore;
  DType dtype = DType::kBF16;
  int64_t in = 512;
  std::vector<int64_t> outs;
  int32_t most_rank = 128;
};

class GpuAdapters : public GpuOps {
 protected:
  static constexpr int32_t kSlots = 3;

  AdaptedLinear Adapted(const LayerCase& c) {
    AdaptedLinear adapted;
    adapted.in = c.in;
    int64_t column = 0;
    for (const int64_t out : c.outs) {
      adapted.ranges.push_back({column, out});
      column += out;
    }
    adapted.adapters.resize(kSlots);
    std::normal_distribution<float> normal;
    // The first adapter changes everything, the second one part, the third has the highest rank.
    const int32_t ranks[kSlots] = {5, 16, c.most_rank};
    for (size_t slot = 0; slot < kSlots; ++slot) {
      for (size_t i = 0; i < c.outs.size(); ++i) {
        if (slot == 1 && i + 1 != c.outs.size()) continue;
        AdapterPart part;
        part.column = adapted.ranges[i].column;
        part.out = c.outs[i];
        part.rank = ranks[slot];
        part.down.resize(static_cast<size_t>(part.rank * c.in));
        part.up.resize(static_cast<size_t>(part.rank * part.out));
        for (float& v : part.down)
          v = Round(c, normal(random_) / std::sqrt(static_cast<float>(c.in)));
        for (float& v : part.up)
          v = Round(c, normal(random_) / std::sqrt(static_cast<float>(part.rank)));
        adapted.adapters[slot].push_back(std::move(part));
      }
    }
    return adapted;
  }
  static float Round(const LayerCase& c, float v) {
    return c.dtype == DType::kBF16 ? FromBf16(ToBf16(v)) : v;
  }
  // What a row's adapter adds to its outputs, before SiLU.
  static std::vector<double> Delta(const AdaptedLinear& adapted, int32_t slot, const TensorView& x,
                                   int64_t row, int64_t columns) {
    std::vector<double> delta(static_cast<size_t>(columns));
    if (slot < 0) return delta;
    for (const AdapterPart& part : adapted.adapters[static_cast<size_t>(slot)]) {
      for (int32_t r = 0; r < part.rank; ++r) {
        double v = 0;
        for (int64_t k = 0; k < adapted.in; ++k)
          v += double{part.down[static_cast<size_t>(r * adapted.in + k)]} *
               TwinTensor::Get(x, row * adapted.in + k);
        for (int64_t o = 0; o < part.out; ++o)
          delta[static_cast<size_t>(part.column + o)] +=
              v * part.up[static_cast<size_t>(r * part.out + o)];
      }
    }
    return delta;
  }

  // A layer with its weights on host and device.
  struct Layer {
    std::vector<TwinTensor> weights;
    std::vector<TensorView> parts;
    std::unique_ptr<PackedLinear> packed;
    DType output = DType::kF32;
    int64_t stacked = 0;  // outputs before SiLU
  };

  Result<Layer> Pack(const LayerCase& c) {
    Layer layer;
    for (const int64_t out : c.outs) {
      layer.weights.push_back(Make(c.dtype, {out, c.in}));
      layer.weights.back().Randomise(random_, 1 / std::sqrt(static_cast<float>(c.in)));
      layer.stacked += out;
    }
    for (const TwinTensor& weight : layer.weights) layer.parts.push_back(weight.host);
    layer.output = c.epilogue == Epilogue::kAccumulate ? DType::kF32 : c.dtype;
    LinearSource source;
    source.parts = layer.parts;
    source.compute_dtype = c.dtype;
    source.epilogue = c.epilogue;
    source.output_dtype = layer.output;
    source.format = c.format;
    AISP_ASSIGN_OR_RETURN(layer.packed, gpu_.ops->PackLinear(source));
    return layer;
  }

  // Runs the layer on the GPU; null `adapter_of_row`: without adapters.
  void RunLayer(const LayerCase& c, const Layer& layer, const AdaptedLinear& adapted, int32_t rows,
                const TensorView& x, const TensorView& to, const int32_t* adapter_of_row) {
    ProgrammeBuilder b;
    const LinearParams params{layer.packed.get(), x, to};
    if (c.epilogue == Epilogue::kAccumulate) {
      b.GivenResidual(to);
      b.LinearAdd(b.Given(x), params, "adapted");
    } else {
      b.Linear(b.Given(x), params, "adapted");
    }
    Programme programme = b.Finish();
    if (adapter_of_row != nullptr) {
      programme.BindAdapters([&](const PackedLinear*) { return &adapted; });
      Done(gpu_.ops->ReserveAdapters(programme, kSlots, c.most_rank));
      for (int32_t slot = 0; slot < kSlots; ++slot)
        Done(gpu_.ops->PlaceAdapter(programme, slot, *stream_));
    }
    Bucket bucket;
    bucket.sequences = bucket.rows = rows;
    bucket.rows_per_sequence = 1;
    bucket.adapters = adapter_of_row != nullptr;
    StepInputs inputs;
    inputs.batch.rows = inputs.batch.num_sequences = rows;
    inputs.adapter_of_row = adapter_of_row;
    RunOnGpu(programme, bucket, inputs);
  }

  // The expected output `i` of a gated layer, with the adapter's contribution to gate and up.
  static double GatedOutput(const LayerCase& c, const Layer& layer, const TensorView& x,
                            int64_t row, int64_t i, double gate, double up) {
    for (int64_t k = 0; k < c.in; ++k) {
      const double v = TwinTensor::Get(x, row * c.in + k);
      gate += v * TwinTensor::Get(layer.parts[0], i * c.in + k);
      up += v * TwinTensor::Get(layer.parts[1], i * c.in + k);
    }
    return gate / (1 + std::exp(-gate)) * up;
  }

  // Compares outputs with adapters to sums in double precision and to outputs without adapters.
  static void Compare(const LayerCase& c, const Layer& layer, const AdaptedLinear& adapted,
                      const std::vector<int32_t>& slots, const TensorView& x, const TensorView& got,
                      const TensorView& without) {
    const auto rows = static_cast<int32_t>(slots.size());
    const int64_t columns = layer.packed->out_features();
    const bool gated = c.epilogue == Epilogue::kGatedSilu;
    double difference = 0, norm = 0, changed = 0;
    for (int32_t row = 0; row < rows; ++row) {
      const int32_t slot = slots[static_cast<size_t>(row)];
      const auto delta = Delta(adapted, slot, x, row, layer.stacked);
      for (int64_t i = 0; i < columns; ++i) {
        const double before = TwinTensor::Get(without, row * columns + i);
        const double own = delta[static_cast<size_t>(i)];
        const double want =
            gated ? GatedOutput(c, layer, x, row, i, own, delta[static_cast<size_t>(columns + i)])
                  : before + own;
        const double is = TwinTensor::Get(got, row * columns + i);
        ASSERT_FALSE(std::isnan(is)) << row << ", " << i;
        // A chain adds in a different order.
        if (slot < 0 && !gated && c.most_rank == 128) {
          ASSERT_EQ(is, before);
        }
        difference += (is - want) * (is - want);
        changed += (is - before) * (is - before);
        norm += want * want;
      }
    }
    EXPECT_LT(std::sqrt(difference / norm), c.dtype == DType::kF32 ? kF32 : kBf16);
    if (rows != 1 || slots[0] >= 0) {
      EXPECT_GT(std::sqrt(changed / norm), 0.1);
    }
  }

  void Run(const LayerCase& c) {
    auto layer = Pack(c);
    ASSERT_TRUE(layer.has_value()) << layer.error().message;
    const AdaptedLinear adapted = Adapted(c);
    const int64_t columns = layer->packed->out_features();
    for (const int32_t rows : {1, 2, 9, 32, 70, 300}) {
      SCOPED_TRACE(rows);
      const int64_t capacity = gpu_.ops->RowCapacity(rows);
      TwinTensor x = Make(c.dtype, {capacity, c.in});
      TwinTensor y = Make(layer->output, {capacity, columns});
      TwinTensor plain = Make(layer->output, {capacity, columns});
      x.Randomise(random_), y.Randomise(random_);
      std::memcpy(plain.host.data, y.host.data, y.host.bytes());
      plain.Upload();
      std::vector<int32_t> slots(static_cast<size_t>(rows));
      for (int32_t i = 0; i < rows; ++i)
        slots[static_cast<size_t>(i)] = rows < 3 ? i : static_cast<int32_t>(random_() % 4) - 1;
      auto on_gpu = gpu_.device->Allocate(slots.size() * 4, MemoryKind::kDevice);
      ASSERT_TRUE(on_gpu.has_value());
      Done(gpu_.device->Copy(on_gpu->data(), slots.data(), slots.size() * 4, *stream_));
      RunLayer(c, *layer, adapted, rows, x.gpu, plain.gpu, nullptr);
      RunLayer(c, *layer, adapted, rows, x.gpu, y.gpu, static_cast<const int32_t*>(on_gpu->data()));
      const auto got_bytes = y.Download(), plain_bytes = plain.Download();
      TensorView got = y.host, without = plain.host;
      got.data = const_cast<std::byte*>(got_bytes.data());
      without.data = const_cast<std::byte*>(plain_bytes.data());
      Compare(c, *layer, adapted, slots, x.host, got, without);
      if (HasFatalFailure()) return;
    }
  }
};

TEST_F(GpuAdapters, AddToTheRowsOfStackedLayers) {
  Run({.outs = {384, 128, 136}});
  Run({.in = 1336, .outs = {264}});
}

TEST_F(GpuAdapters, AddToTheResidualStream) {
  Run({.epilogue = Epilogue::kAccumulate, .outs = {520}});
}

TEST_F(GpuAdapters, AddBeforeSilu) { Run({.epilogue = Epilogue::kGatedSilu, .outs = {648, 648}}); }

// Low ranks: in the launch of the layer itself, up to 64 rows.
TEST_F(GpuAdapters, AddInsideALaunch) {
  Run({.outs = {384, 128, 136}, .most_rank = 16});
  Run({.in = 1336, .outs = {264}, .most_rank = 64});
  Run({.epilogue = Epilogue::kAccumulate, .outs = {520}, .most_rank = 32});
  Run({.epilogue = Epilogue::kGatedSilu, .outs = {648, 648}, .most_rank = 16});
}

TEST_F(GpuAdapters, AddToLayersWithQuantisedWeights) {
  for (const WeightFormat format : {WeightFormat::kFp8, WeightFormat::kNvfp4}) {
    Run({.format = format, .outs = {384, 128, 128}});
    Run({.format = format, .epilogue = Epilogue::kAccumulate, .outs = {512}});
  }
}

TEST_F(GpuAdapters, AddInF32) {
  Run({.dtype = DType::kF32, .in = 75, .outs = {30, 17, 9}});
  Run({.epilogue = Epilogue::kAccumulate, .dtype = DType::kF32, .in = 64, .outs = {50}});
}

TEST_F(GpuAdapters, GreaterRanksAreRefusedByNumber) {
  ProgrammeBuilder b;
  const Programme programme = b.Finish();
  const Status refused = gpu_.ops->ReserveAdapters(programme, 1, 129);
  ASSERT_FALSE(refused.has_value());
  EXPECT_EQ(refused.error().code, Code::kUnimplemented);
  EXPECT_NE(refused.error().message.find("129"), std::string::npos);
  EXPECT_NE(refused.error().message.find("128"), std::string::npos);
}

// ---- models ----

using Adapters = std::vector<std::shared_ptr<const LoraAdapter>>;

Rig OpenGpuRig(CudaBackend& gpu, const std::string& directory, DType compute,
               const Adapters& adapters, int32_t max_adapters = 0) {
  AsyncExecutorOptions options;
  options.base.model.compute_dtype = compute;
  options.base.model.max_batch_tokens = 256;
  options.base.model.weight_format = WeightFormat::kCompute;
  options.base.model.adapters = adapters;
  options.base.model.max_adapters = max_adapters;
  options.base.model.max_adapter_rank = 16;
  options.base.max_slots = 16;
  options.base.block_tokens = 16;
  options.base.num_blocks = 256;
  auto executor = AsyncExecutor::Create(directory, options, *gpu.device, *gpu.ops);
  AISP_CHECK_MSG(executor.has_value(), executor.error().ToString());
  return Rig::Around(std::move(gpu.device), std::move(gpu.ops), std::move(*executor));
}

std::shared_ptr<const LoraAdapter> Open(const std::string& name, const std::string& folder) {
  auto adapter = LoraAdapter::Load(name, folder, 128);
  EXPECT_TRUE(adapter.has_value()) << adapter.error().message;
  return *adapter;
}

double Distance(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += std::pow(double{a[i]} - double{b[i]}, 2);
    norm += std::pow(double{b[i]}, 2);
  }
  return std::sqrt(difference / norm);
}

class GpuLora : public testing::TestWithParam<std::tuple<std::string, DType>> {};

TEST_P(GpuLora, RowsOfTwoAdaptersAndOfNoneInOneBatchAreThoseOfMergedWeights) {
  const auto& [family, compute] = GetParam();
  const std::string base = GoldenDirectory(family);
  const TempFolder folder;
  const TestAdapter one = RandomAdapter(base, kAll, 4, 1);
  const TestAdapter two = RandomAdapter(base, {"q_proj", "o_proj", "down_proj"}, 16, 2);
  one.Write(folder.path() + "/one");
  two.Write(folder.path() + "/two");
  WriteMerged(base, one, folder.path() + "/merged one");
  WriteMerged(base, two, folder.path() + "/merged two");
  std::vector<TokenId> prompt = LoadGolden(family).back().prompt;
  prompt.resize(40);
  std::vector<std::vector<float>> expected;
  for (const std::string& directory :
       {base, folder.path() + "/merged one", folder.path() + "/merged two"}) {
    Rig merged = Rig::Open(directory, {});
    auto sequence = merged.NewSequence(prompt, 40);
    expected.push_back(merged.LastLogits(sequence, 40));
  }
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenGpuRig(gpu, base, compute,
                       {Open("one", folder.path() + "/one"), Open("two", folder.path() + "/two")});
  std::vector<Rig::Sequence> sequences;
  for (const int32_t adapter : {-1, 0, 1, 0}) {
    sequences.push_back(rig.NewSequence(prompt, 40));
    sequences.back().adapter = adapter;
  }
  const std::vector<std::vector<float>> mixed = InUnequalChunks(rig, sequences, 40);
  const double most = compute == DType::kF32 ? 1e-3 : 0.05;
  for (const auto& [row, of] : {std::pair(0, 0), {1, 1}, {2, 2}, {3, 1}}) {
    EXPECT_LT(Distance(mixed[static_cast<size_t>(row)], expected[static_cast<size_t>(of)]), most)
        << row;
  }
  EXPECT_GT(Distance(mixed[1], expected[0]), 2 * most);
  EXPECT_GT(Distance(mixed[2], expected[0]), 2 * most);
}

INSTANTIATE_TEST_SUITE_P(
    Families, GpuLora,
    testing::Values(std::tuple("llama", DType::kF32), std::tuple("qwen2", DType::kF32),
                    std::tuple("qwen3", DType::kF32), std::tuple("mixtral", DType::kF32),
                    std::tuple("deepseek-v3", DType::kF32), std::tuple("llama", DType::kBF16),
                    std::tuple("qwen2", DType::kBF16), std::tuple("llama-mha-hd128", DType::kBF16)),
    [](const auto& each) {
      std::string name = std::get<0>(each.param) + "_";
      name += DTypeName(std::get<1>(each.param));
      std::replace(name.begin(), name.end(), '-', '_');
      return name;
    });

// ---- an engine ----

// Greedy answers to one prompt, one for each adapter ("": none), all in one batch.
std::vector<std::vector<TokenId>> Answers(Engine& engine, const std::vector<TokenId>& prompt,
                                          const std::vector<std::string>& adapters) {
  std::map<SequenceId, size_t> whose;
  std::vector<std::vector<TokenId>> answers(adapters.size());
  for (size_t i = 0; i < adapters.size(); ++i) {
    SequenceRequest request;
    request.tokens = prompt;
    request.prompt_tokens = static_cast<int32_t>(prompt.size());
    request.sampling.temperature = 0;
    request.max_new_tokens = 20;
    request.adapter = adapters[i];
    const auto id = engine.Add(std::move(request));
    AISP_CHECK_MSG(id.has_value(), id.error().message);
    whose[*id] = i;
  }
  while (engine.CanLaunch() || engine.InFlight()) {
    while (engine.CanLaunch()) AISP_CHECK(engine.Launch().has_value());
    if (!engine.InFlight()) continue;
    for (const TokenOutput& out : engine.Collect().tokens) {
      EXPECT_EQ(out.error.message, "");
      if (out.token >= 0) answers[whose.at(out.sequence)].push_back(out.token);
    }
  }
  return answers;
}

TEST(GpuLoraEngine, TokensAreThoseOfTheCpuAlsoOfAdaptersThatComeAndGo) {
  const std::string base = GoldenDirectory("llama");
  const TempFolder folder;
  RandomAdapter(base, kAll, 4, 1).Write(folder.path() + "/one");
  RandomAdapter(base, kAll, 16, 2).Write(folder.path() + "/two");
  const auto one = Open("one", folder.path() + "/one"), two = Open("two", folder.path() + "/two");
  std::vector<TokenId> prompt = LoadGolden("llama").back().prompt;
  prompt.resize(30);
  const SteadyClock clock;
  const std::vector<std::string> adapters = {"", one->digest(), two->digest(), one->digest(), ""};
  std::vector<std::vector<TokenId>> expected;
  {
    Rig::Options options;
    options.adapters = {one, two};
    Rig rig = Rig::Open(base, options);
    Engine engine({}, rig.executor.get(), &clock, nullptr);
    expected = Answers(engine, prompt, adapters);
    ASSERT_NE(expected[0], expected[1]);
    ASSERT_NE(expected[1], expected[2]);
  }
  AISP_OPEN_GPU(gpu);
  Rig rig = OpenGpuRig(gpu, base, DType::kF32, {}, 2);
  EngineOptions options;
  options.limits.max_prefill_chunk = 16;
  Engine engine(options, rig.executor.get(), &clock, nullptr);
  const auto load = [&](const LoraAdapter& adapter) {
    auto packed = rig.executor->model().PackAdapter(adapter);
    ASSERT_TRUE(packed.has_value()) << packed.error().message;
    const Status loaded = engine.LoadAdapter(std::move(*packed));
    ASSERT_TRUE(loaded.has_value()) << loaded.error().message;
  };
  load(*one);
  load(*two);
  EXPECT_EQ(Answers(engine, prompt, adapters), expected);
  EXPECT_EQ(Answers(engine, prompt, {""})[0], expected[0]);
  // The adapters swap slots: graphs must read the current contents.
  engine.DropAdapter(one->digest());
  engine.DropAdapter(two->digest());
  load(*two);
  EXPECT_EQ(rig.executor->FindAdapter(two->digest()), 0);
  EXPECT_EQ(Answers(engine, prompt, {two->digest()})[0], expected[2]);
  load(*one);
  EXPECT_EQ(Answers(engine, prompt, adapters), expected);
}

}  // namespace
}  // namespace aisp
