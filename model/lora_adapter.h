// LoraAdapter: a low-rank adapter in PEFT's layout: adapter_config.json and
// adapter_model.safetensors with `lora_A.weight` [rank, in] and `lora_B.weight` [out, rank] for
// each changed matrix. Files are untrusted, and anything unknown is refused by name: a partly
// applied adapter would silently give wrong answers.
//
// Immutable after Load; any thread. It owns the memory of its views.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/result.h"
#include "model/safetensors.h"

namespace aisp {

// Contents of adapter_config.json.
struct LoraConfig {
  int32_t rank = 0;
  float scale = 1.0f;  // lora_alpha / rank, or / sqrt(rank) with use_rslora
};
// INVALID_ARGUMENT, UNIMPLEMENTED name the option: DoRA, biases, ranks by pattern, whole modules.
Result<LoraConfig> ParseLoraConfig(std::string_view text, const std::string& file);

class LoraAdapter {
 public:
  struct Matrix {
    TensorView down;  // [rank, in]
    TensorView up;    // [out, rank]
  };

  // A rank above `max_rank` is refused with both numbers.
  static Result<std::shared_ptr<const LoraAdapter>> Load(const std::string& name,
                                                         const std::string& folder,
                                                         int32_t max_rank);

  const std::string& name() const { return name_; }
  // 32 hexadecimal digits over both files; equal digests compute equal results.
  const std::string& digest() const { return digest_; }
  const LoraConfig& config() const { return config_; }
  // By module name in the checkpoint: "model.layers.0.self_attn.q_proj".
  const std::map<std::string, Matrix>& matrices() const { return matrices_; }

 private:
  LoraAdapter(std::string name, std::vector<std::byte> file)
      : name_(std::move(name)), file_(std::move(file)) {}
  Status TakeMatrices(const std::string& path);

  const std::string name_;
  const std::vector<std::byte> file_;
  std::string digest_;
  LoraConfig config_;
  std::map<std::string, Matrix> matrices_;
};

}  // namespace aisp
