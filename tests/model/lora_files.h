// Random LoRA adapters in PEFT's layout, and checkpoints with one merged: the expected results of
// serving the adapter with the base checkpoint.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

namespace aisp {

struct FloatTensor {
  std::vector<int64_t> shape;
  std::vector<float> values;
};
using FloatTensors = std::map<std::string, FloatTensor>;

void WriteSafetensors(const std::string& path, const FloatTensors& tensors);

struct TestAdapter {
  int32_t rank = 4;
  double alpha = 8;
  bool by_root = false;  // use_rslora
  FloatTensors tensors;  // by PEFT's names

  double scale() const;
  std::string ConfigJson() const;
  // Writes adapter_config.json and adapter_model.safetensors.
  void Write(const std::string& folder) const;
};

// For the checkpoint's matrices (f32) whose module name ends with one of `targets`; not for those
// of experts.
TestAdapter RandomAdapter(const std::string& checkpoint, const std::vector<std::string>& targets,
                          int32_t rank, uint64_t seed);
// Writes `checkpoint` to `folder` with scale * B A added to its matrices.
void WriteMerged(const std::string& checkpoint, const TestAdapter& adapter,
                 const std::string& folder);

}  // namespace aisp
