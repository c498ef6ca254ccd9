#include "tests/model/golden.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "common/check.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "model/files.h"

namespace aisp {

std::string GoldenDirectory(const std::string& name) {
  const std::string folder = "/tests/data/goldens/" + name;
  // The binary was built elsewhere: look from the root of the source tree.
  std::error_code ignored;
  const std::string root =
      std::filesystem::exists(AISP_SOURCE_DIR + folder, ignored) ? AISP_SOURCE_DIR : ".";
  return root + folder;
}

std::string StoryDirectory(const std::string& name) {
  for (const std::string& root :
       {std::string(AISP_SOURCE_DIR) + "/models/", std::string(AISP_SHARED_DIR) + "/models/",
        std::string("./models/")}) {
    if (std::filesystem::exists(root + name + "/model.safetensors")) return root + name;
  }
  return "";
}

std::vector<GoldenCase> LoadGolden(const std::string& name) {
  const auto text = ReadTextFile(GoldenDirectory(name) + "/expected.json");
  AISP_CHECK_MSG(text.has_value(), "no expected.json for " + name);
  std::vector<GoldenCase> cases;
  const nlohmann::json json = nlohmann::json::parse(*text);
  for (const auto& c : json["cases"]) {
    GoldenCase g;
    g.prompt = c["prompt"].get<std::vector<TokenId>>();
    g.greedy = c["greedy"].get<std::vector<TokenId>>();
    g.last_logits = c["last_logits"].get<std::vector<float>>();
    g.min_top2_margin = c["min_top2_margin"].get<double>();
    if (c.contains("mean_nll") && c["mean_nll"].is_number())
      g.mean_nll = c["mean_nll"].get<double>();
    cases.push_back(std::move(g));
  }
  return cases;
}

std::unique_ptr<Device> MakeTestDevice() { return MakeCpuDevice(); }
std::unique_ptr<Ops> MakeTestOps() { return std::move(*MakeCpuOps({})); }

bool CpuComputes(DType dtype) {
  auto ops = MakeCpuOps({});
  AISP_CHECK_MSG(ops.has_value(), ops.error().ToString());
  return (*ops)->PreferredComputeDType(dtype, int64_t{1} << 40) == dtype;
}

Rig Rig::Open(const std::string& directory, const Options& options) {
  Rig rig;
  rig.device = MakeCpuDevice();
  auto ops = MakeCpuOps({.threads = options.threads});
  AISP_CHECK_MSG(ops.has_value(), ops.error().ToString());
  rig.ops = std::move(*ops);
  ModelExecutorOptions o;
  o.model.compute_dtype = options.compute_dtype;
  o.model.max_batch_tokens = options.max_batch_tokens;
  o.model.adapters = options.adapters;
  o.model.max_adapters = options.max_adapters;
  o.model.output_tokens = options.output_tokens;
  o.max_slots = std::max(options.max_slots, 1);
  o.block_tokens = options.block_tokens;
  o.num_blocks = options.num_blocks;
  o.kv_dtype = options.kv_dtype;
  auto executor = ModelExecutor::Create(directory, o, *rig.device, *rig.ops);
  AISP_CHECK_MSG(executor.has_value(), executor.error().ToString());
  rig.executor = std::move(*executor);
  return rig;
}

Rig::Sequence Rig::NewSequence(std::vector<TokenId> tokens, int32_t max_tokens) {
  const KvLayout& layout = executor->kv_layout();
  Sequence s;
  s.tokens = std::move(tokens);
  for (int32_t i = 0; i < layout.BlocksFor(max_tokens); ++i) {
    // 7 is coprime to the pool's size, so neighbouring blocks of a sequence are not neighbours in
    // the pool.
    const int32_t block = static_cast<int32_t>(int64_t{next_block++} * 7 % layout.num_blocks);
    s.table.push_back(block);
    s.blocks.emplace_back(block);
  }
  return s;
}

std::vector<std::vector<float>> Rig::Step(const std::vector<Rows>& rows, LayerSink* sink) {
  std::vector<TokenId> tokens;
  std::vector<int32_t> positions, slots, tables, logit_rows, adapters;
  bool adapts = false;
  std::vector<SequenceRows> sequences;
  std::vector<LayerSlice> slices;
  for (const Rows& r : rows) {
    Sequence& s = *r.sequence;
    sequences.push_back({static_cast<int32_t>(tokens.size()), r.count, s.computed + r.count,
                         static_cast<int32_t>(tables.size())});
    slices.push_back({SequenceId{sequences.size()}, s.computed, s.computed + r.count, s.blocks});
    for (int32_t i = 0; i < r.count; ++i) {
      if (r.all_logits || i == r.count - 1)
        logit_rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(s.tokens.at(static_cast<size_t>(s.computed) + static_cast<size_t>(i)));
      positions.push_back(s.computed + i);
      slots.push_back(0);
      adapters.push_back(s.adapter);
    }
    tables.insert(tables.end(), s.table.begin(), s.table.end());
    s.computed += r.count;
    adapts |= s.adapter >= 0;
  }
  StepInput input;
  input.batch = {tokens, positions, slots, sequences, tables, logit_rows};
  if (adapts) input.batch.adapter_of_row = adapters;
  input.sink = sink;
  if (sink != nullptr) input.slices = slices;
  auto ticket = executor->Launch(input);
  AISP_CHECK_MSG(ticket.has_value(), ticket.error().ToString());
  auto result = executor->Collect(*ticket);
  AISP_CHECK(result.has_value());
  std::vector<std::vector<float>> out;
  for (size_t i = 0; i < logit_rows.size(); ++i) out.push_back(ReadLogits(static_cast<int64_t>(i)));
  return out;
}

std::vector<float> Rig::ReadLogits(int64_t row) {
  const TensorView logits = executor->logits();
  std::vector<float> out(static_cast<size_t>(logits.cols()));
  auto stream = device->CreateStream();
  AISP_CHECK(stream.has_value());
  AISP_CHECK(device
                 ->Copy(out.data(), logits.as<float>() + row * logits.cols(),
                        out.size() * sizeof(float), **stream)
                 .has_value());
  AISP_CHECK(device->Synchronize(**stream).has_value());
  return out;
}

Rig Rig::Around(std::unique_ptr<Device> device, std::unique_ptr<Ops> ops,
                std::unique_ptr<ServingExecutor> executor) {
  Rig rig;
  rig.device = std::move(device);
  rig.ops = std::move(ops);
  rig.executor = std::move(executor);
  return rig;
}

std::vector<std::vector<float>> Rig::AllLogits(const std::vector<TokenId>& tokens, int32_t chunk) {
  Sequence s = NewSequence(tokens, static_cast<int32_t>(tokens.size()));
  std::vector<std::vector<float>> out;
  while (s.computed < static_cast<int32_t>(tokens.size())) {
    const int32_t n =
        std::min({chunk, static_cast<int32_t>(tokens.size()) - s.computed, executor->max_slots()});
    for (auto& row : Step({{&s, n, true}})) out.push_back(std::move(row));
  }
  return out;
}

std::vector<float> Rig::LastLogits(Sequence& s, int32_t chunk) {
  std::vector<std::vector<float>> logits;
  while (s.computed < static_cast<int32_t>(s.tokens.size())) {
    logits = Step({{&s, std::min(chunk, static_cast<int32_t>(s.tokens.size()) - s.computed)}});
  }
  return logits.back();
}

std::vector<TokenId> Rig::Greedy(const std::vector<TokenId>& prompt, int32_t count, int32_t chunk,
                                 const std::vector<TokenId>& stop) {
  Sequence s = NewSequence(prompt, static_cast<int32_t>(prompt.size()) + count);
  std::vector<TokenId> out;
  while (static_cast<int32_t>(out.size()) < count) {
    const TokenId token = ArgMax(LastLogits(s, chunk));
    out.push_back(token);
    if (std::find(stop.begin(), stop.end(), token) != stop.end()) break;
    s.tokens.push_back(token);
  }
  return out;
}

TokenId ArgMax(const std::vector<float>& logits) {
  return static_cast<TokenId>(std::max_element(logits.begin(), logits.end()) - logits.begin());
}

double MeanNll(const std::vector<TokenId>& tokens, const std::vector<std::vector<float>>& logits) {
  double sum = 0;
  for (size_t i = 0; i + 1 < tokens.size(); ++i) {
    const float max = *std::max_element(logits[i].begin(), logits[i].end());
    double total = 0;
    for (float l : logits[i]) total += std::exp(static_cast<double>(l - max));
    sum += std::log(total) + max - logits[i][static_cast<size_t>(tokens[i + 1])];
  }
  return sum / static_cast<double>(tokens.size() - 1);
}

}  // namespace aisp
