#include "tests/model/lora_files.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>

#include "common/check.h"
#include "common/random.h"
#include "model/safetensors.h"

namespace aisp {
namespace {

constexpr const char* kPrefix = "base_model.model.";

FloatTensors ReadCheckpoint(const std::string& directory) {
  const auto checkpoint = Checkpoint::Open(directory);
  AISP_CHECK_MSG(checkpoint.has_value(), checkpoint.error().ToString());
  FloatTensors out;
  for (const auto& [name, stored] : (*checkpoint)->tensors()) {
    AISP_CHECK_MSG(stored.dtype == "F32", name);
    FloatTensor tensor{stored.shape, std::vector<float>(stored.data.size() / sizeof(float))};
    std::memcpy(tensor.values.data(), stored.data.data(), stored.data.size());
    out.emplace(name, std::move(tensor));
  }
  return out;
}

}  // namespace

void WriteSafetensors(const std::string& path, const FloatTensors& tensors) {
  std::string header = "{";
  std::string data;
  for (const auto& [name, tensor] : tensors) {
    const size_t begin = data.size();
    data.append(reinterpret_cast<const char*>(tensor.values.data()),
                tensor.values.size() * sizeof(float));
    header += fmt::format(R"({}"{}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}})",
                          header.size() > 1 ? "," : "", name, fmt::join(tensor.shape, ","), begin,
                          data.size());
  }
  header += "}";
  header.resize((header.size() + 7) / 8 * 8, ' ');
  const uint64_t size = header.size();
  std::ofstream out(path, std::ios::binary);
  out.write(reinterpret_cast<const char*>(&size), sizeof(size));
  out << header << data;
}

double TestAdapter::scale() const { return alpha / (by_root ? std::sqrt(rank) : rank); }

std::string TestAdapter::ConfigJson() const {
  return fmt::format(
      R"({{"peft_type":"LORA","r":{},"lora_alpha":{},"use_rslora":{},"use_dora":false,"bias":"none",)"
      R"("modules_to_save":null,"rank_pattern":{{}},"alpha_pattern":{{}},"init_lora_weights":true,)"
      R"("fan_in_fan_out":false,"lora_dropout":0.1,"task_type":"CAUSAL_LM"}})",
      rank, alpha, by_root);
}

void TestAdapter::Write(const std::string& folder) const {
  std::filesystem::create_directories(folder);
  std::ofstream(folder + "/adapter_config.json") << ConfigJson();
  WriteSafetensors(folder + "/adapter_model.safetensors", tensors);
}

TestAdapter RandomAdapter(const std::string& checkpoint, const std::vector<std::string>& targets,
                          int32_t rank, uint64_t seed) {
  TestAdapter adapter;
  adapter.rank = rank;
  SplitMix64 random(seed);
  const auto fill = [&random](std::vector<int64_t> shape, double width) {
    FloatTensor tensor{shape, std::vector<float>(static_cast<size_t>(shape[0] * shape[1]))};
    for (float& value : tensor.values)
      value = static_cast<float>((2 * random.Uniform() - 1) * width);
    return tensor;
  };
  for (const auto& [name, tensor] : ReadCheckpoint(checkpoint)) {
    if (!name.ends_with(".weight") || tensor.shape.size() != 2) continue;
    const std::string module = name.substr(0, name.size() - std::strlen(".weight"));
    const auto is = [&](const std::string& target) { return module.ends_with("." + target); };
    if (module.find(".experts.") != std::string::npos ||
        std::none_of(targets.begin(), targets.end(), is))
      continue;
    // As large as the weights are, so that answers differ.
    adapter.tensors.emplace(kPrefix + module + ".lora_A.weight",
                            fill({rank, tensor.shape[1]}, 0.1));
    adapter.tensors.emplace(kPrefix + module + ".lora_B.weight",
                            fill({tensor.shape[0], rank}, 0.1));
  }
  AISP_CHECK(!adapter.tensors.empty());
  return adapter;
}

void WriteMerged(const std::string& checkpoint, const TestAdapter& adapter,
                 const std::string& folder) {
  FloatTensors merged = ReadCheckpoint(checkpoint);
  for (const auto& [name, a] : adapter.tensors) {
    const size_t at = name.rfind(".lora_A.weight");
    if (at == std::string::npos) continue;
    const std::string stem = name.substr(0, at);
    const FloatTensor& b = adapter.tensors.at(stem + ".lora_B.weight");
    FloatTensor& w = merged.at(stem.substr(std::strlen(kPrefix)) + ".weight");
    const auto out = static_cast<size_t>(w.shape[0]), in = static_cast<size_t>(w.shape[1]);
    const auto rank = static_cast<size_t>(adapter.rank);
    for (size_t o = 0; o < out; ++o) {
      for (size_t i = 0; i < in; ++i) {
        double sum = 0;
        for (size_t r = 0; r < rank; ++r)
          sum += double{b.values[o * rank + r]} * double{a.values[r * in + i]};
        w.values[o * in + i] += static_cast<float>(adapter.scale() * sum);
      }
    }
  }
  std::filesystem::create_directories(folder);
  std::filesystem::copy_file(checkpoint + "/config.json", folder + "/config.json");
  WriteSafetensors(folder + "/model.safetensors", merged);
}

}  // namespace aisp
