// ModelSpec: the shape of a checkpoint as plain data from its config.json. Independent of weights
// and devices.
//
// A model family is a row of a table in spec.cc, not a class: it lists the keys of its config.json
// and the names of its tensors. An unknown architecture is an error that lists the known ones.
// Plain values: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/ids.h"
#include "common/result.h"
#include "kernels/device/dtype.h"

namespace aisp {

enum class RopeScaling : uint8_t { kNone, kLinear, kLlama3, kYarn };

// Rotary position embedding (Su et al., arXiv:2104.09864), and how frequencies are scaled for long
// contexts.
struct RopeSpec {
  double theta = 10000.0;
  RopeScaling scaling = RopeScaling::kNone;
  double factor = 1.0;
  // llama3
  double low_freq_factor = 1.0;
  double high_freq_factor = 4.0;
  int32_t original_max_position = 0;
  // yarn (Peng et al., arXiv:2309.00071)
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double attention_factor = 1.0;  // factor for cosines and sines
};

enum class AttentionKind : uint8_t {
  kGrouped,  // grouped-query attention; multi-head if the counts are equal
  kLatent,   // multi-head latent attention (DeepSeek)
};

struct AttentionSpec {
  AttentionKind kind = AttentionKind::kGrouped;
  int32_t num_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;  // as cached; for kLatent the padded size of an expanded key or value
  int32_t window = 0;    // 0: full attention
  bool qkv_bias = false;
  bool output_bias = false;
  bool qk_norm = false;
  float scale = 1.0f;
  // kLatent
  int32_t q_lora_rank = 0;  // 0: q is projected directly
  int32_t kv_lora_rank = 0;
  int32_t nope_dim = 0;
  int32_t rope_dim = 0;
  int32_t v_dim = 0;
};

enum class MlpKind : uint8_t { kGated, kExperts };
enum class RouterScore : uint8_t { kSoftmax, kSigmoid };

struct MlpSpec {
  MlpKind kind = MlpKind::kGated;
  int32_t intermediate = 0;  // for kExperts: of one expert
  // kExperts
  int32_t num_experts = 0;
  int32_t top_k = 0;
  int32_t num_groups = 1;
  int32_t top_groups = 1;
  int32_t shared_intermediate = 0;  // 0: no shared expert
  RouterScore score = RouterScore::kSoftmax;
  bool normalise = true;
  bool correction_bias = false;
  float routed_scale = 1.0f;
};

struct LayerSpec {
  AttentionSpec attention;
  MlpSpec mlp;
};

// Storage format of weights.
enum class QuantFormat : uint8_t {
  kNone,
  kFp8Channel,  // e4m3, one scale per output row or one for all
  kFp8Block,    // e4m3, one scale per block of 128 x 128
  kNvfp4,       // e2m1 in groups of 16, each with an e4m3 scale, and one f32 scale
};

struct QuantSpec {
  QuantFormat format = QuantFormat::kNone;
  // The inputs of FP8 layers shall be rounded to FP8 too (W8A8).
  bool fp8_activations = false;
  int32_t block_rows = 128;  // kFp8Block
  int32_t block_cols = 128;
};

// The shape of a token's KV, equal for all layers.
struct KvShape {
  int32_t num_layers = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
};

struct ModelSpec {
  std::string architecture;  // "LlamaForCausalLM"
  int32_t hidden = 0;
  int32_t vocabulary = 0;
  int32_t max_position = 0;
  float norm_epsilon = 1e-6f;
  bool tied_embeddings = false;
  DType dtype = DType::kF32;  // as stated in config.json
  RopeSpec rope;
  std::vector<LayerSpec> layers;
  QuantSpec quant;
  std::vector<TokenId> eos;  // may be empty
  std::optional<TokenId> bos;

  KvShape kv() const;
};

// Parses a config.json. INVALID_ARGUMENT names the key that is missing, of the wrong type or out of
// range; UNIMPLEMENTED names what is unsupported and what is supported.
Result<ModelSpec> ParseModelSpec(std::string_view config_json);
// From `directory`/config.json, or from `directory` itself if it ends with ".json"; NOT_FOUND when
// unreadable.
Result<ModelSpec> LoadModelSpec(const std::string& directory);

// "LlamaForCausalLM, MistralForCausalLM, ...".
std::string KnownArchitectures();

}  // namespace aisp
