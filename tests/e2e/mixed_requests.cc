#include "tests/e2e/mixed_requests.h"

#include <algorithm>
#include <functional>
#include <iterator>

#include "common/random.h"
#include "tests/model/lora_files.h"

namespace aisp::e2e {
namespace {

struct Feature {
  const char* name;
  std::function<void(SplitMix64&, Json*)> add;
};

// A pattern, or a schema with fixed texts of several tokens: keys, and enum members with a common
// beginning.
void Constrain(SplitMix64& random, Json* body) {
  static const char* const schemas[] = {
      R"({"type": "object", "additionalProperties": false,
          "required": ["favourite_animal", "how_many_of_them"],
          "properties": {"favourite_animal": {"enum": ["elephant", "elegant swan", "zebra"]},
                         "how_many_of_them": {"type": "integer", "minimum": 0, "maximum": 99}}})",
      R"({"type": "array", "items": {"type": "integer"}, "minItems": 3, "maxItems": 12})",
      R"({"type": "string", "maxLength": 40})",
      R"({"type": "object", "additionalProperties": false, "required": ["title", "chapters"],
          "properties": {
              "title": {"const": "The old bridge over the river"},
              "chapters": {"type": "array", "minItems": 2, "maxItems": 4, "items": {
                  "type": "object", "additionalProperties": false, "required": ["heading"],
                  "properties": {"heading": {"type": "string", "maxLength": 12}}}}}})"};
  const uint64_t which = random.Below(1 + std::size(schemas));
  if (which == std::size(schemas))
    (*body)["guided_regex"] = "[a-z]+( [a-z]+){3,30}\\.";
  else
    (*body)["guided_json"] = Json::parse(schemas[which]);
}

std::vector<Feature> Features() {
  return {
      {"logprobs", [](SplitMix64& r, Json* body) { (*body)["logprobs"] = r.Below(5); }},
      {"prompt logprobs",
       [](SplitMix64& r, Json* body) { (*body)["prompt_logprobs"] = r.Below(3); }},
      {"penalties",
       [](SplitMix64& r, Json* body) {
         const uint64_t which = 1 + r.Below(7);
         if ((which & 1) != 0) (*body)["repetition_penalty"] = 1.2;
         if ((which & 2) != 0) (*body)["presence_penalty"] = 0.7;
         if ((which & 4) != 0) (*body)["frequency_penalty"] = 0.4;
       }},
      {"logit bias",
       [](SplitMix64&, Json* body) {
         (*body)["logit_bias"] = {{"300", 5}, {"301", -100}};
       }},
      {"min_tokens", [](SplitMix64& r, Json* body) { (*body)["min_tokens"] = 1 + r.Below(6); }},
      {"choices", [](SplitMix64& r, Json* body) { (*body)["n"] = 2 + r.Below(2); }},
      {"stop strings",
       [](SplitMix64& r, Json* body) {
         const char* const second[] = {" the o", " was ", "zebra"};
         (*body)["stop"] = {"bridge", second[r.Below(3)]};
       }},
      {"stop tokens",
       [](SplitMix64&, Json* body) {
         (*body)["stop_token_ids"] = {300, 301, 302};
       }},
      {"deadline", [](SplitMix64& r, Json* body) { (*body)["timeout"] = 280 + r.Below(20); }},
      {"grammar", Constrain},
      {"priority",
       [](SplitMix64& r, Json* body) { (*body)["priority"] = static_cast<int>(r.Below(5)) - 2; }},
      {"lora", [](SplitMix64&, Json* body) { (*body)["model"] = kAdapterName; }},
      {"own speculation",
       [](SplitMix64& r, Json* body) {
         const uint64_t which = r.Below(6);
         if (which < 4)
           (*body)["speculation"] = {{"num_speculative_tokens", which}};
         else
           (*body)["speculation"] = which == 4 ? "off" : "auto";
       }},
  };
}

// Prompts of six kinds share beginnings of whole blocks, and repeat earlier text.
Json Plain(SplitMix64& random) {
  const auto one_in = [&random](uint64_t n) { return random.Below(n) == 0; };
  const int kind = static_cast<int>(random.Below(6));
  const std::string story = Prose(static_cast<int>(20 + 10 * random.Below(8)), kind);
  Json body = {{"prompt", one_in(2) ? story : story + ". " + story},
               {"max_tokens", 8 + random.Below(57)},
               {"temperature", one_in(3) ? 0.0 : 0.25 * static_cast<double>(1 + random.Below(4))},
               {"seed", random.Below(1'000'000)},
               {"ignore_eos", one_in(2)}};
  if (one_in(3)) body["top_p"] = 0.9;
  if (one_in(4)) body["top_k"] = 1 + random.Below(40);
  if (one_in(5)) body["min_p"] = 0.05;
  return body;
}

}  // namespace

// min_tokens cannot be promised together with a constraint.
bool Together(const std::string& feature, const std::string& other) {
  const auto are = [&](const char* a, const char* b) { return feature == a && other == b; };
  return !are("grammar", "min_tokens") && !are("min_tokens", "grammar");
}

const std::vector<std::string>& AllFeatures() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> out;
    for (const Feature& each : Features()) out.emplace_back(each.name);
    return out;
  }();
  return names;
}

std::vector<MixedRequest> MixedRequests(int count, uint64_t seed) {
  SplitMix64 random(seed);
  std::vector<MixedRequest> out;
  for (int i = 0; i < count; ++i) {
    MixedRequest request{Plain(random), {}};
    for (const Feature& each : Features()) {
      const bool fits = std::all_of(request.features.begin(), request.features.end(),
                                    [&](const auto& had) { return Together(had, each.name); });
      if (random.Below(2) == 0 || !fits) continue;
      each.add(random, &request.body);
      request.features.insert(each.name);
    }
    out.push_back(std::move(request));
  }
  return out;
}

void WriteAdapter(const std::string& folder) {
  constexpr int64_t kHidden = 256;
  constexpr int kLayers = 8;
  const std::map<std::string, std::pair<int64_t, int64_t>> shapes = {
      {"self_attn.q_proj", {256, kHidden}},
      {"self_attn.v_proj", {128, kHidden}},
      {"mlp.up_proj", {768, kHidden}},
      {"mlp.down_proj", {kHidden, 768}}};
  TestAdapter adapter;
  SplitMix64 random(7);
  const auto add = [&](const std::string& name, int64_t rows, int64_t columns) {
    FloatTensor tensor{{rows, columns}, {}};
    for (int64_t i = 0; i < rows * columns; ++i)
      tensor.values.push_back(0.2f * static_cast<float>(random.Uniform()) - 0.1f);
    adapter.tensors[name] = std::move(tensor);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const auto& [module, shape] : shapes) {
      const std::string at =
          "base_model.model.model.layers." + std::to_string(layer) + "." + module;
      add(at + ".lora_A.weight", adapter.rank, shape.second);
      add(at + ".lora_B.weight", shape.first, adapter.rank);
    }
  }
  adapter.Write(folder);
}

void Pairs::Note(const std::string& thing, const std::set<std::string>& others) {
  for (const std::string& other : others) ++counts_[std::minmax(thing, other)];
}
void Pairs::Note(const std::set<std::string>& all) {
  for (const std::string& each : all) Note(each, all);
}
int Pairs::Count(const std::string& one, const std::string& other) const {
  const auto it = counts_.find(std::minmax(one, other));
  return it == counts_.end() ? 0 : it->second;
}

}  // namespace aisp::e2e
