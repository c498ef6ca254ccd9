#include "model/mtp_spec.h"

#include <fmt/format.h>

#include "model/files.h"
#include "model/json_reader.h"

namespace aisp {
namespace {

Status CheckTarget(const ModelSpec& model, const ModelSpec& target) {
  const auto refuse = [](std::string_view what, int32_t have, int32_t want) {
    return InvalidArgument(
        fmt::format("config.json: {} is {}, and the target's is {}", what, have, want));
  };
  if (model.hidden != target.hidden) return refuse("hidden_size", model.hidden, target.hidden);
  if (model.vocabulary != target.vocabulary)
    return refuse("vocab_size", model.vocabulary, target.vocabulary);
  return {};
}

}  // namespace

Result<MtpSpec> ParseMtpSpec(std::string_view config_json, const ModelSpec& target) {
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(config_json, "config.json"));
  MtpSpec spec;
  AISP_ASSIGN_OR_RETURN(spec.model, ParseModelSpec(config_json));
  JsonReader r(json, "config.json");
  const int32_t count = r.IntOr("num_nextn_predict_layers", 0, 0, 1 << 10);
  AISP_RETURN_IF_ERROR(r.status());
  if (count == 0) {
    return InvalidArgument(
        "config.json: num_nextn_predict_layers is 0; mtp needs a checkpoint with a next-token "
        "layer, its own or one that \"model\" of speculative_config names");
  }
  AISP_RETURN_IF_ERROR(CheckTarget(spec.model, target));
  // It has the same kind as the last layer before it.
  spec.model.layers.push_back(spec.model.layers.back());
  spec.layer = CompileLayers(spec.model).back();
  spec.model.layers = {spec.model.layers.back()};
  return spec;
}

Result<MtpSpec> LoadMtpSpec(const std::string& directory, const ModelSpec& target) {
  const bool is_file = directory.ends_with(".json");
  AISP_ASSIGN_OR_RETURN(const std::string text,
                        ReadTextFile(is_file ? directory : directory + "/config.json"));
  auto spec = ParseMtpSpec(text, target);
  if (!spec) return tl::unexpected(spec.error().WithContext(directory));
  return spec;
}

}  // namespace aisp
