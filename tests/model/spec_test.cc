#include "model/spec.h"

#include <gtest/gtest.h>

#include <cmath>
#include <nlohmann/json.hpp>

#include "model/generation_config.h"
#include "model/rope.h"

namespace aisp {
namespace {

nlohmann::json Llama() {
  return nlohmann::json::parse(
      R"({"architectures":["LlamaForCausalLM"],"hidden_size":128,"intermediate_size":256,
    "num_attention_heads":4,"num_key_value_heads":2,"num_hidden_layers":2,"vocab_size":512,"max_position_embeddings":4096,
    "rms_norm_eps":1e-5,"eos_token_id":2,"torch_dtype":"bfloat16"})");
}

ModelSpec Parse(const nlohmann::json& json) {
  auto spec = ParseModelSpec(json.dump());
  EXPECT_TRUE(spec.has_value()) << spec.error().message;
  return spec.value_or(ModelSpec{});
}

void ExpectError(const nlohmann::json& json, Code code, const std::string& part) {
  const auto spec = ParseModelSpec(json.dump());
  ASSERT_FALSE(spec.has_value()) << part;
  EXPECT_EQ(spec.error().code, code);
  EXPECT_NE(spec.error().message.find(part), std::string::npos) << spec.error().message;
}

TEST(ModelSpec, HeadDimIsDerivedWhenItIsAbsentOrNull) {
  auto json = Llama();
  EXPECT_EQ(Parse(json).layers[0].attention.head_dim, 32);
  json["head_dim"] = nullptr;
  EXPECT_EQ(Parse(json).layers[0].attention.head_dim, 32);
  json["head_dim"] = 64;
  EXPECT_EQ(Parse(json).layers[0].attention.head_dim, 64);
  EXPECT_EQ(Parse(json).kv().num_kv_heads, 2);
}

TEST(ModelSpec, OldAndNewSpellingsOfRopeMeanTheSame) {
  auto old = Llama();
  old["rope_theta"] = 500000.0;
  old["rope_scaling"] = {{"rope_type", "llama3"},
                         {"factor", 8.0},
                         {"low_freq_factor", 1.0},
                         {"high_freq_factor", 4.0},
                         {"original_max_position_embeddings", 128}};
  auto recent = Llama();
  recent["rope_parameters"] = old["rope_scaling"];
  recent["rope_parameters"]["rope_theta"] = 500000.0;
  const RopeSpec a = Parse(old).rope, b = Parse(recent).rope;
  EXPECT_EQ(a.scaling, RopeScaling::kLlama3);
  EXPECT_EQ(RopeFrequencies(a, 64), RopeFrequencies(b, 64));
  old["rope_scaling"]["type"] = "linear";
  old["rope_scaling"].erase("rope_type");
  EXPECT_EQ(Parse(old).rope.scaling, RopeScaling::kLinear);
}

TEST(ModelSpec, EosMayBeOneIdOrAList) {
  auto json = Llama();
  EXPECT_EQ(Parse(json).eos, (std::vector<TokenId>{2}));
  json["eos_token_id"] = {5, 2};
  EXPECT_EQ(Parse(json).eos, (std::vector<TokenId>{5, 2}));
  json["eos_token_id"] = nullptr;
  EXPECT_TRUE(Parse(json).eos.empty());
}

TEST(ModelSpec, AnUnknownArchitectureIsToldTheKnownOnes) {
  auto json = Llama();
  json["architectures"] = {"GPT2LMHeadModel"};
  ExpectError(json, Code::kUnimplemented, "GPT2LMHeadModel");
  ExpectError(json, Code::kUnimplemented, "Qwen3MoeForCausalLM");
  json.erase("architectures");
  ExpectError(json, Code::kUnimplemented, "LlamaForCausalLM");
}

TEST(ModelSpec, WhatIsMissingOrImpossibleIsNamed) {
  for (const char* key : {"hidden_size", "vocab_size", "num_hidden_layers", "num_attention_heads",
                          "intermediate_size", "max_position_embeddings"}) {
    auto json = Llama();
    json.erase(key);
    ExpectError(json, Code::kInvalidArgument, key);
    for (const nlohmann::json& bad : {nlohmann::json(-1), nlohmann::json("x"), nlohmann::json(0),
                                      nlohmann::json(1e30), nlohmann::json(2.5)}) {
      json[key] = bad;
      ExpectError(json, Code::kInvalidArgument, key);
    }
  }
  auto json = Llama();
  json["num_key_value_heads"] = 3;
  ExpectError(json, Code::kInvalidArgument, "evenly");
  json = Llama();
  json["head_dim"] = 20;
  ExpectError(json, Code::kInvalidArgument, "multiple of 16");
  json = Llama();
  json["hidden_act"] = "gelu";
  ExpectError(json, Code::kUnimplemented, "gelu");
  json = Llama();
  json["rope_scaling"] = {{"type", "longrope"}};
  ExpectError(json, Code::kUnimplemented, "longrope");
  json = Llama();
  json["quantization_config"] = {{"quant_method", "gptq"}};
  ExpectError(json, Code::kUnimplemented, "gptq");
  EXPECT_EQ(ParseModelSpec("[1]").error().code, Code::kInvalidArgument);
  EXPECT_EQ(ParseModelSpec("{").error().code, Code::kInvalidArgument);
}

TEST(ModelSpec, Fp8CheckpointsSayWhetherActivationsAreRounded) {
  const auto asks = [](const nlohmann::json& quantization) {
    auto json = Llama();
    json["quantization_config"] = quantization;
    return Parse(json).quant.fp8_activations;
  };
  EXPECT_TRUE(asks({{"quant_method", "fp8"}, {"activation_scheme", "dynamic"}}));
  EXPECT_TRUE(asks({{"quant_method", "modelopt"}, {"quant_algo", "FP8"}}));
  EXPECT_FALSE(asks({{"quant_method", "modelopt"}, {"quant_algo", "NVFP4"}}));
  nlohmann::json packed = {{"quant_method", "compressed-tensors"}, {"format", "float-quantized"}};
  EXPECT_FALSE(asks(packed));
  packed["config_groups"]["group_0"]["input_activations"] = nullptr;
  EXPECT_FALSE(asks(packed));
  packed["config_groups"]["group_0"]["input_activations"] = {{"num_bits", 8}, {"dynamic", true}};
  EXPECT_TRUE(asks(packed));
}

TEST(ModelSpec, SlidingWindowsFollowTheFamily) {
  auto json = Llama();
  json["sliding_window"] = 64;
  EXPECT_EQ(Parse(json).layers[0].attention.window, 0);  // Llama has none
  json["architectures"] = {"MistralForCausalLM"};
  EXPECT_EQ(Parse(json).layers[0].attention.window, 64);
  json["architectures"] = {"Qwen2ForCausalLM"};
  EXPECT_EQ(Parse(json).layers[0].attention.window, 0);
  json["use_sliding_window"] = true;
  json["layer_types"] = {"full_attention", "sliding_attention"};
  EXPECT_EQ(Parse(json).layers[0].attention.window, 0);
  EXPECT_EQ(Parse(json).layers[1].attention.window, 64);
}

TEST(Rope, Llama3KeepsShortWavesAndStretchesLongOnes) {
  RopeSpec rope;
  rope.theta = 500000;
  const auto plain = RopeFrequencies(rope, 64);
  rope.scaling = RopeScaling::kLlama3;
  rope.factor = 8;
  rope.original_max_position = 8192;
  const auto scaled = RopeFrequencies(rope, 64);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_FLOAT_EQ(scaled[31], plain[31] / 8);
  for (size_t i = 1; i < scaled.size(); ++i) EXPECT_LT(scaled[i], scaled[i - 1]);
}

TEST(Rope, YarnBlendsBetweenKeptAndStretchedPairs) {
  RopeSpec rope;
  const auto plain = RopeFrequencies(rope, 128);
  rope.scaling = RopeScaling::kYarn;
  rope.factor = 4;
  rope.original_max_position = 4096;
  const auto scaled = RopeFrequencies(rope, 128);
  EXPECT_EQ(scaled[0], plain[0]);
  EXPECT_FLOAT_EQ(scaled[63], plain[63] / 4);
  for (size_t i = 0; i < scaled.size(); ++i) {
    EXPECT_LE(scaled[i], plain[i]);
    EXPECT_GE(scaled[i] * 4.0001f, plain[i]);
  }
}

TEST(GenerationDefaults, JoinBothFilesEndTokens) {
  ModelSpec spec;
  spec.eos = {5, 2};
  const auto d = ParseGenerationDefaults(
      R"({"eos_token_id":[2,7],"temperature":0.6,"top_p":0.9,"top_k":20})", spec);
  ASSERT_TRUE(d.has_value());
  EXPECT_EQ(d->eos, (std::vector<TokenId>{2, 5, 7}));
  EXPECT_FLOAT_EQ(*d->temperature, 0.6f);
  EXPECT_EQ(*d->top_k, 20);
  EXPECT_FALSE(d->min_p.has_value());
  EXPECT_EQ(ParseGenerationDefaults("", spec)->eos, (std::vector<TokenId>{2, 5}));
  EXPECT_EQ(ParseGenerationDefaults(R"({"temperature":"hot"})", spec).error().code,
            Code::kInvalidArgument);
}

}  // namespace
}  // namespace aisp
