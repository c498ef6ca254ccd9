#include "model/pooling_config.h"

#include "model/files.h"
#include "model/json_reader.h"

namespace aisp {

Result<std::string> ParsePoolingMode(std::string_view text) {
  constexpr std::string_view kPrefix = "pooling_mode_";
  AISP_ASSIGN_OR_RETURN(const Json json, ParseJsonObject(text, "1_Pooling/config.json"));
  std::string mode;
  for (const auto& [key, value] : json.items()) {
    if (!key.starts_with(kPrefix) || !value.is_boolean() || !value.get<bool>()) continue;
    if (!mode.empty()) {
      return InvalidArgument(
          "1_Pooling/config.json: embeddings of several poolings, joined, are "
          "not supported; choose one with --pooling");
    }
    mode = key.substr(kPrefix.size());
  }
  if (mode == "mean_tokens") return std::string("mean");
  if (mode == "lasttoken") return std::string("last");
  if (mode == "cls_token") return std::string("cls");
  return mode;
}

Result<std::string> LoadPoolingMode(const std::string& directory) {
  const std::string path = directory + "/1_Pooling/config.json";
  if (!FileExists(path)) return std::string();
  AISP_ASSIGN_OR_RETURN(const std::string text, ReadTextFile(path));
  return ParsePoolingMode(text);
}

}  // namespace aisp
