// HubCache: one model in a cache with Hugging Face's layout, compatible with their tools:
//
//   models--org--name/blobs/HASH                    content, named by its hash
//   models--org--name/blobs/HASH.incomplete         a partial download
//   models--org--name/snapshots/COMMIT/config.json  a link to a blob
//   models--org--name/refs/main                     last seen commit of a branch or tag
//   models--org--name/.no_exist/COMMIT/FILE         the hub has no such file
//   .locks/models--org--name/HASH.lock              held by the process that downloads HASH
//
// Blobs, links and refs are created by rename, so they are always complete. Immutable; any thread.
#pragma once

#include <string>
#include <vector>

#include "common/result.h"
#include "hub/options.h"
#include "hub/repo.h"

namespace aisp {

class HubCache {
 public:
  // FAILED_PRECONDITION: options.cache is empty.
  static Result<HubCache> At(const HubOptions& options, const HubRepo& repo);

  const std::string& folder() const { return folder_; }
  std::string Blob(const std::string& hash) const { return folder_ + "/blobs/" + hash; }
  std::string Incomplete(const std::string& hash) const { return Blob(hash) + ".incomplete"; }
  std::string Lock(const std::string& hash) const;
  std::string Snapshot(const std::string& commit) const;

  // The commit in refs/ for the revision, or the revision if it is a commit; "" when unknown.
  std::string Commit() const;
  // Files that a server needs and the snapshot lacks: "config.json", shards named by its index.
  // `weights` false: ignores tensors. `tokenizer`: also requires one unless the hub is known to
  // have none.
  std::vector<std::string> Missing(const std::string& commit, bool weights, bool tokenizer) const;

  // Creates the folders. Errors name the folder.
  Status Prepare() const;
  // Links `file` of the snapshot to the blob.
  Status Link(const std::string& commit, const std::string& file, const std::string& hash) const;
  Status NoteAbsent(const std::string& commit, const std::string& file) const;
  // Records `commit` as the revision's.
  Status WriteRef(const std::string& commit) const;

 private:
  HubCache(std::string root, const HubRepo& repo);
  bool Has(const std::string& commit, const std::string& file) const;
  bool KnownAbsent(const std::string& commit, const std::string& file) const;

  std::string root_;
  std::string folder_;
  HubRepo repo_;
};

// Far more than any model has, and few enough that their sizes can be added up.
inline constexpr size_t kMaxShards = 4096;

// The sorted shard names in a model.safetensors.index.json. INVALID_ARGUMENT: malformed, more than
// kMaxShards, or an invalid file name; `where` is for the message.
Result<std::vector<std::string>> ShardsOf(const std::string& index, const std::string& where);

// The folder of a complete snapshot. NOT_FOUND says what was searched and what is missing.
Result<std::string> FindSnapshot(const HubOptions& options, const HubRepo& repo, bool weights,
                                 bool tokenizer);

}  // namespace aisp
