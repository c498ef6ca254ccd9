// BlobDownload: downloads one file of a model into the cache: takes its lock, resumes with Range
// requests, checks the hash, and renames it to a blob.
//
// One thread per download; threads share the counters.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "common/result.h"
#include "hub/attempts.h"
#include "hub/cache.h"
#include "hub/content_hash.h"
#include "hub/file_lock.h"
#include "hub/http.h"

namespace aisp {

// A file as described by the hub; its size may be at most this.
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

struct HubFile {
  std::string name;
  std::string hash;  // SHA-256 or Git's SHA-1 of the content; also the blob's name
  uint64_t size = 0;
  std::string commit;
  std::string url;
};

// Over all files of one pull. `present` decreases when content turns out to be wrong.
struct PullCounters {
  std::atomic<int64_t> present{0};  // bytes on disk
  std::atomic<int> waiting{0};      // files that another process is downloading
};

struct PullContext {
  const HubOptions& options;
  const HubCache& cache;
  StopSign* stop;
  PullCounters* counters;
};

// HEAD of a file at a revision. NOT_FOUND: no such file. Other errors quote the hub's answer.
Result<HubFile> Describe(const PullContext& context, const HubRepo& repo,
                         const std::string& revision, const std::string& name, HubHttp& http);

// Bytes of the file in the cache, as a blob or in part.
uint64_t BytesPresent(const HubCache& cache, const HubFile& file);

// Makes the whole file a blob; waits if another process downloads it. DATA_LOSS: wrong hash, twice;
// RESOURCE_EXHAUSTED: disk full. After an error, what may be right is kept.
Status FetchBlob(const PullContext& context, const HubFile& file, HubHttp& http);

// The JSON header of a safetensors file. "" when another process downloads the file or the blob
// exists (it was checked then). The bytes are kept for FetchBlob. INVALID_ARGUMENT: not
// safetensors.
Result<std::string> FetchSafetensorsHeader(const PullContext& context, const HubFile& file,
                                           HubHttp& http);

}  // namespace aisp
