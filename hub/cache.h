// HubCache: one model in a cache of Hugging Face's layout, as their own tools read and write it:
//
//   models--org--name/blobs/HASH                    content, named by its hash
//   models--org--name/blobs/HASH.incomplete         as much as has come
//   models--org--name/snapshots/COMMIT/config.json  a link to a blob
//   models--org--name/refs/main                     the commit that a branch or tag was last seen
//   at models--org--name/.no_exist/COMMIT/FILE         the hub said that there is no such file
//   .locks/models--org--name/HASH.lock              held by who downloads HASH
//
// Blobs, links and refs come by rename: what is there is whole. Immutable; any thread.
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

  // The commit that refs/ has for the revision, or the revision itself if it is one; "" when the
  // cache knows none.
  std::string Commit() const;
  // What a snapshot of this commit lacks, for a server: "config.json", the shards that its index
  // names. Empty: it is whole. Without `weights` the tensors are not asked for. `tokenizer`: also
  // one, unless the hub is known to have none.
  std::vector<std::string> Missing(const std::string& commit, bool weights, bool tokenizer) const;

  // Makes the folders. Errors name the folder.
  Status Prepare() const;
  // Links `file` of the snapshot to the blob.
  Status Link(const std::string& commit, const std::string& file, const std::string& hash) const;
  Status NoteAbsent(const std::string& commit, const std::string& file) const;
  // The revision is at `commit`.
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

// The names of the shards in the text of a model.safetensors.index.json, sorted. INVALID_ARGUMENT:
// it is none, names more than kMaxShards, or one is no file name; `where` is for the message.
Result<std::vector<std::string>> ShardsOf(const std::string& index, const std::string& where);

// The folder of a snapshot that is whole. NOT_FOUND says what was looked for and what is missing.
Result<std::string> FindSnapshot(const HubOptions& options, const HubRepo& repo, bool weights,
                                 bool tokenizer);

}  // namespace aisp
