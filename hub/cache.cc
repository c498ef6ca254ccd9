#include "hub/cache.h"

#include <fmt/format.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "common/strings.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr uintmax_t kMaxIndexBytes = 64u << 20;
constexpr const char* kIndex = "model.safetensors.index.json";

std::string ReadSmall(const std::string& path) {
  std::error_code error;
  const uintmax_t size = fs::file_size(path, error);
  if (error || size > kMaxIndexBytes) return "";
  std::ifstream file(path, std::ios::binary);
  return std::string(std::istreambuf_iterator<char>(file), {});
}

// A unique temporary name beside `path`.
std::string Beside(const std::string& path) {
  static std::atomic<int> counter{0};
  return fmt::format("{}.{}-{}.tmp", path, getpid(), counter++);
}

Status MakeParent(const std::string& path) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  fs::create_directories(parent, error);
  if (!error) return {};
  return FailedPrecondition(fmt::format("the cache's folder {}: {}; HF_HOME names another cache",
                                        parent.string(), error.message()));
}

Status WriteWhole(const std::string& path, const std::string& text) {
  AISP_RETURN_IF_ERROR(MakeParent(path));
  const std::string temporary = Beside(path);
  {
    std::ofstream out(temporary, std::ios::binary);
    out << text;
    out.close();
    if (!out) {
      unlink(temporary.c_str());
      return ResourceExhausted(path + ": could not be written; the disk may be full");
    }
  }
  std::error_code error;
  fs::rename(temporary, path, error);
  if (error) return Internal(fmt::format("{}: {}", path, error.message()));
  return {};
}

}  // namespace

HubCache::HubCache(std::string root, const HubRepo& repo)
    : root_(std::move(root)), folder_(root_ + "/" + repo.Folder()), repo_(repo) {}

Result<HubCache> HubCache::At(const HubOptions& options, const HubRepo& repo) {
  if (options.cache.empty()) {
    return FailedPrecondition(
        "there is no folder for models: neither HF_HOME, HF_HUB_CACHE nor HOME is set");
  }
  return HubCache(options.cache, repo);
}

std::string HubCache::Lock(const std::string& hash) const {
  return fmt::format("{}/.locks/{}/{}.lock", root_, repo_.Folder(), hash);
}

std::string HubCache::Snapshot(const std::string& commit) const {
  return folder_ + "/snapshots/" + commit;
}

std::string HubCache::Commit() const {
  const std::string text = ReadSmall(folder_ + "/refs/" + repo_.revision);
  const std::string_view commit = Trim(text);
  if (IsCommit(commit)) return std::string(commit);
  return IsCommit(repo_.revision) ? repo_.revision : "";
}

bool HubCache::Has(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::is_regular_file(Snapshot(commit) + "/" + file, error);  // follows the link
}

bool HubCache::KnownAbsent(const std::string& commit, const std::string& file) const {
  std::error_code error;
  return fs::exists(folder_ + "/.no_exist/" + commit + "/" + file, error);
}

std::vector<std::string> HubCache::Missing(const std::string& commit, bool weights,
                                           bool tokenizer) const {
  std::vector<std::string> missing;
  const auto want = [&](const std::string& file) {
    if (!Has(commit, file)) missing.push_back(file);
  };
  want("config.json");
  if (weights && Has(commit, kIndex)) {
    const std::string path = Snapshot(commit) + "/" + kIndex;
    const auto shards = ShardsOf(ReadSmall(path), path);
    if (!shards) return {kIndex};
    for (const std::string& shard : *shards) want(shard);
  } else if (weights) {
    want("model.safetensors");
  }
  if (tokenizer && !Has(commit, "tokenizer.json") && !Has(commit, "tokenizer.model")) {
    const bool none =
        KnownAbsent(commit, "tokenizer.json") && KnownAbsent(commit, "tokenizer.model");
    if (!none) missing.push_back("tokenizer.json");
  }
  return missing;
}

Status HubCache::Prepare() const { return MakeParent(folder_ + "/blobs/x"); }

Status HubCache::Link(const std::string& commit, const std::string& file,
                      const std::string& hash) const {
  const std::string path = Snapshot(commit) + "/" + file;
  AISP_RETURN_IF_ERROR(MakeParent(path));
  const std::string temporary = Beside(path);
  std::error_code error;
  fs::create_symlink("../../blobs/" + hash, temporary, error);
  // Some file systems have no symbolic links; a hard link also works.
  if (error) fs::create_hard_link(Blob(hash), temporary, error);
  if (!error) fs::rename(temporary, path, error);
  if (!error) return {};
  unlink(temporary.c_str());
  return FailedPrecondition(fmt::format("the link {}: {}", path, error.message()));
}

Status HubCache::NoteAbsent(const std::string& commit, const std::string& file) const {
  return WriteWhole(folder_ + "/.no_exist/" + commit + "/" + file, "");
}

Status HubCache::WriteRef(const std::string& commit) const {
  if (repo_.revision == commit) return {};
  return WriteWhole(folder_ + "/refs/" + repo_.revision, commit);
}

Result<std::vector<std::string>> ShardsOf(const std::string& index, const std::string& where) {
  const auto json = nlohmann::json::parse(index, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object() || !json.contains("weight_map") || !json["weight_map"].is_object() ||
      json["weight_map"].empty()) {
    return InvalidArgument(where + ": a JSON object with \"weight_map\" is expected");
  }
  std::set<std::string> shards;
  for (const auto& [tensor, file] : json["weight_map"].items()) {
    const std::string name = file.is_string() ? file.get<std::string>() : "";
    if (!name.ends_with(".safetensors") || name.find('/') != std::string::npos ||
        name.front() == '.' || name.size() > 200) {
      return InvalidArgument(
          fmt::format("{}: tensor \"{}\" lies in \"{}\", which is no name of a .safetensors file",
                      where, Excerpt(tensor), Excerpt(name)));
    }
    shards.insert(name);
    if (shards.size() > kMaxShards) {
      return InvalidArgument(
          fmt::format("{}: tensors lie in more than {} files", where, kMaxShards));
    }
  }
  return std::vector<std::string>(shards.begin(), shards.end());
}

Result<std::string> FindSnapshot(const HubOptions& options, const HubRepo& repo, bool weights,
                                 bool tokenizer) {
  AISP_ASSIGN_OR_RETURN(const HubCache cache, HubCache::At(options, repo));
  const std::string commit = cache.Commit();
  std::error_code error;
  if (commit.empty() || !fs::is_directory(cache.Snapshot(commit), error)) {
    return NotFound(fmt::format("{} is not in the cache {}", repo.Shown(), options.cache));
  }
  const std::vector<std::string> missing = cache.Missing(commit, weights, tokenizer);
  if (missing.empty()) return cache.Snapshot(commit);
  return NotFound(fmt::format("{} is in the cache {} in part: commit {} lacks {}", repo.Shown(),
                              options.cache, commit, Join(missing, ", ")));
}

}  // namespace aisp
