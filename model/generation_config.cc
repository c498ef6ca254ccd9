#include "model/generation_config.h"

#include <algorithm>

#include "model/files.h"
#include "model/json_reader.h"

namespace aisp {
namespace {

void AddEos(JsonReader& r, std::vector<TokenId>* eos) {
  if (!r.Has("eos_token_id")) return;
  const Json& v = r.json().at("eos_token_id");
  const Json list = v.is_array() ? v : Json::array({v});
  for (const Json& id : list) {
    if (!id.is_number_integer() || id.get<int64_t>() < 0 || id.get<int64_t>() > INT32_MAX) {
      r.Refuse("generation_config.json: \"eos_token_id\" has to be a token id or a list of them");
      return;
    }
    eos->push_back(id.get<TokenId>());
  }
}

}  // namespace

Result<GenerationDefaults> ParseGenerationDefaults(std::string_view text, const ModelSpec& spec) {
  GenerationDefaults d;
  if (!text.empty()) {
    AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, "generation_config.json"));
    JsonReader r(json, "generation_config.json");
    AddEos(r, &d.eos);
    if (r.Has("temperature"))
      d.temperature = static_cast<float>(r.Number("temperature", 0.0, 100.0));
    if (r.Has("top_p")) d.top_p = static_cast<float>(r.Number("top_p", 0.0, 1.0));
    if (r.Has("top_k")) d.top_k = r.Int("top_k", 0, INT32_MAX);
    if (r.Has("min_p")) d.min_p = static_cast<float>(r.Number("min_p", 0.0, 1.0));
    if (r.Has("repetition_penalty"))
      d.repetition_penalty = static_cast<float>(r.Number("repetition_penalty", 1e-3, 1e3));
    if (!d.temperature && r.Has("do_sample") && !r.BoolOr("do_sample", true)) d.temperature = 0.0f;
    AISP_RETURN_IF_ERROR(r.status());
  }
  d.eos.insert(d.eos.end(), spec.eos.begin(), spec.eos.end());
  std::sort(d.eos.begin(), d.eos.end());
  d.eos.erase(std::unique(d.eos.begin(), d.eos.end()), d.eos.end());
  return d;
}

Result<GenerationDefaults> LoadGenerationDefaults(const std::string& directory,
                                                  const ModelSpec& spec) {
  const std::string path = directory + "/generation_config.json";
  std::string text;
  if (FileExists(path)) {
    AISP_ASSIGN_OR_RETURN(text, ReadTextFile(path));
  }
  auto defaults = ParseGenerationDefaults(text, spec);
  if (!defaults) return tl::unexpected(defaults.error().WithContext(directory));
  return defaults;
}

}  // namespace aisp
