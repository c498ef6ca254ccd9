// Helpers that the tests of text/ share: a temporary model folder, JSON to Value, a tiny tokenizer.
#pragma once

#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>

#include <nlohmann/json.hpp>

#include "tests/support/temp_files.h"
#include "text/value.h"

namespace aisp::testing {

using Json = nlohmann::ordered_json;

inline std::string ReadAll(const std::filesystem::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

inline Value ToValue(const Json& j) {
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_integer()) return j.get<int64_t>();
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_array()) {
    Value::List items;
    for (const Json& item : j) items.push_back(ToValue(item));
    return items;
  }
  if (j.is_object()) {
    Value::Map map;
    for (const auto& [key, item] : j.items()) map.Set(key, ToValue(item));
    return map;
  }
  return {};
}

// A byte-level BPE of six letters, a few merges and three added tokens.
inline Json TinyTokenizer() {
  return Json::parse(R"({
    "added_tokens": [
      {"id": 10, "content": "<|end|>", "special": true, "normalized": false},
      {"id": 11, "content": "<|strip|>", "special": true, "normalized": false, "lstrip": true, "rstrip": true},
      {"id": 12, "content": "word", "special": false, "normalized": false, "single_word": true}
    ],
    "normalizer": null,
    "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": false, "use_regex": true},
    "post_processor": {"type": "TemplateProcessing",
      "single": [{"SpecialToken": {"id": "<|end|>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
      "special_tokens": {"<|end|>": {"id": "<|end|>", "ids": [10], "tokens": ["<|end|>"]}}},
    "decoder": {"type": "ByteLevel"},
    "model": {"type": "BPE", "unk_token": null, "byte_fallback": false,
      "vocab": {"a": 0, "b": 1, "c": 2, "Ġ": 3, "ab": 4, "abc": 5, "bc": 6, "Ġa": 7, "Ã": 8, "©": 9},
      "merges": ["b c", "a b", "a bc", "Ġ a"]}
  })");
}

}  // namespace aisp::testing
