#include "server/model_source.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>

#include "common/log.h"
#include "common/strings.h"
#include "config/hub_environment.h"
#include "hub/cache.h"
#include "hub/repo.h"
#include "server/model_pull.h"
#include "server/process.h"
#include "server/served_model.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kBuiltInModel = "story-7m";
// Where the shipped shapes are, relative to the program.
constexpr const char* kShapeFolders[] = {"../config/models", "../../config/models",
                                         "../share/aisp/shapes"};

bool IsFolder(const std::string& path) {
  std::error_code error;
  return fs::is_directory(path, error);
}

bool RandomWeights(const Config& config) { return !config.model.weights.empty(); }

// A shipped model, by the name of its folder.
Result<std::string> BuiltInModel(const std::string& name) {
  const fs::path here = ExecutableFolder();
  std::vector<std::string> tried;
  for (const char* relative : {"../models", "../../models", "../share/aisp/models"}) {
    const fs::path folder = (here / relative / name).lexically_normal();
    std::error_code error;
    if (fs::exists(folder / "config.json", error)) return folder.string();
    tried.push_back(folder.string());
  }
  return NotFound(fmt::format(
      "the built-in model is not beside the program (looked for {}); give --model FOLDER",
      Join(tried, ", ")));
}

// A config.json without weights, by path or by the name of a shipped shape; "": neither.
std::string ShapeFile(const std::string& name) {
  std::vector<std::string> shapes = {name};
  for (const char* relative : kShapeFolders)
    shapes.push_back(fmt::format("{}/{}/{}.json", ExecutableFolder(), relative, name));
  for (const std::string& shape : shapes) {
    std::error_code error;
    if (shape.ends_with(".json") && fs::exists(shape, error))
      return fs::path(shape).lexically_normal().string();
  }
  return "";
}

// `path`, if it is a folder that holds a model.
Result<std::string> FolderOfModel(const std::string& path) {
  const std::string config = path + "/config.json";
  if (access(config.c_str(), R_OK) == 0) return path;
  return NotFound(
      fmt::format("model.path (--model) '{}' is a folder without a readable model: {}: {}; name "
                  "the folder that "
                  "holds config.json, the safetensors and tokenizer.json",
                  Excerpt(path), config, std::strerror(errno)));
}

// No rule applies: the error lists what each one found.
tl::unexpected<Error> NoSuchModel(const Config& config) {
  const std::string& path = config.model.path;
  std::string text = fmt::format("model.path (--model) '{}' is not a folder", Excerpt(path));
  if (!RandomWeights(config) && !ShapeFile(path).empty()) {
    text += "; it is a shape, which has no weights: --weights random:SEED makes them up";
    return NotFound(std::move(text));
  }
  text += fmt::format(
      "; it wants a folder with config.json and safetensors, story-7m, org/name or "
      "org/name@revision of the hub, or, with --weights random:SEED, the name of a shape: {}",
      Join(ShapeNames(), ", "));
  return NotFound(std::move(text));
}

}  // namespace

std::vector<std::string> ShapeNames() {
  std::vector<std::string> names;
  for (const char* relative : kShapeFolders) {
    std::error_code error;
    for (const auto& entry : fs::directory_iterator(ExecutableFolder() + "/" + relative, error)) {
      if (entry.path().extension() == ".json") names.push_back(entry.path().stem().string());
    }
    if (!names.empty()) break;
  }
  std::sort(names.begin(), names.end());
  return names;
}

Result<std::string> ResolveModelPath(const Config& config) {
  const std::string& path = config.model.path;
  if (path.empty()) return BuiltInModel(kBuiltInModel);
  if (IsFolder(path)) return FolderOfModel(path);
  if (RandomWeights(config)) {
    if (std::string shape = ShapeFile(path); !shape.empty()) return shape;
  }
  if (path.find('/') == std::string::npos && !path.starts_with('.')) {
    if (auto shipped = BuiltInModel(path)) return shipped;
  }
  if (!NeedsTheHub(config)) return NoSuchModel(config);
  AISP_ASSIGN_OR_RETURN(const HubRepo repo, ParseHubRepo(path));
  AISP_ASSIGN_OR_RETURN(const HubOptions hub, HubOptionsFromEnvironment());
  auto found = FindSnapshot(hub, repo, !RandomWeights(config), /*tokenizer=*/false);
  if (found) return found;
  return NotFound(
      fmt::format("model.path (--model) '{}' is not a folder, and of the hub's models {}; "
                  "`aisp pull {}` downloads it",
                  path, found.error().message, path));
}

bool NeedsTheHub(const Config& config) {
  const std::string& path = config.model.path;
  const bool local =
      path.empty() || IsFolder(path) || (RandomWeights(config) && !ShapeFile(path).empty());
  return !local && LooksLikeHubRepo(path);
}

Status BringModelHere(Config* config, const std::function<bool()>& cancelled) {
  const std::string path = config->model.path;
  if (!NeedsTheHub(*config)) return {};
  AISP_ASSIGN_OR_RETURN(const HubRepo repo, ParseHubRepo(path));
  AISP_ASSIGN_OR_RETURN(const HubOptions hub, HubOptionsFromEnvironment());
  const bool weights = !RandomWeights(*config);
  // Unless offline, a cached snapshot without tokenizer files does not count: ask the hub.
  auto folder = FindSnapshot(hub, repo, weights, /*tokenizer=*/!hub.offline);
  if (!folder && folder.error().code == Code::kNotFound) {
    if (hub.offline) {
      return NotFound(
          fmt::format("model.path (--model) '{}' is not a folder, and of the hub's models "
                      "{}; HF_HUB_OFFLINE is set, so it is not downloaded",
                      path, folder.error().message));
    }
    LogInfo("the model is downloaded",
            {{"model", repo.Shown()}, {"why", folder.error().message}, {"endpoint", hub.endpoint}});
    AISP_ASSIGN_OR_RETURN(const Pulled pulled, PullModel(*config, hub, repo, weights, cancelled));
    folder = pulled.folder;
  }
  if (!folder) return tl::unexpected(folder.error());
  if (config->model.served_name.empty()) config->model.served_name = repo.Id();
  config->model.path = *folder;
  return {};
}

std::string ServedNameOf(const Config& config, const std::string& path) {
  if (!config.model.served_name.empty()) return config.model.served_name;
  if (!IsFolder(config.model.path) && LooksLikeHubRepo(config.model.path)) {
    if (const auto repo = ParseHubRepo(config.model.path)) return repo->Id();
  }
  std::string name = fs::path(path).lexically_normal().filename().string();
  if (name.empty()) name = fs::path(path).parent_path().filename().string();
  if (name.ends_with(".json")) name.resize(name.size() - 5);
  return name;
}

}  // namespace aisp
