// BlobDownload: one file of a model on its way into the cache: its lock, what is there of it, the
// rest by Range requests, its hash, and the rename that makes it a blob.
//
// One thread for each; threads share the counters.
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

// A file as the hub describes it.
// What the hub may say that a file has.
inline constexpr int64_t kMaxFileBytes = int64_t{1} << 50;

struct HubFile {
  std::string name;
  std::string hash;  // of its content: SHA-256 or Git's SHA-1; its blob's name
  uint64_t size = 0;
  std::string commit;
  std::string url;
};

// Of all files of one pull. `present` goes down when content turns out to be wrong.
struct PullCounters {
  std::atomic<int64_t> present{0};  // bytes that are on disk
  std::atomic<int> waiting{0};      // files that another process downloads
};

struct PullContext {
  const HubOptions& options;
  const HubCache& cache;
  StopSign* stop;
  PullCounters* counters;
};

// HEAD of a file at a revision. NOT_FOUND: there is none. Other errors say what the hub answered.
Result<HubFile> Describe(const PullContext& context, const HubRepo& repo,
                         const std::string& revision, const std::string& name, HubHttp& http);

// Bytes of it that are in the cache, as blob or in part.
uint64_t BytesPresent(const HubCache& cache, const HubFile& file);

// The whole file as a blob; at once when it is there. Waits for another process that downloads it.
// DATA_LOSS: its hash is wrong, twice; RESOURCE_EXHAUSTED: the disk is full. After any error what
// came is kept as far as it may be right.
Status FetchBlob(const PullContext& context, const HubFile& file, HubHttp& http);

// The header of a safetensors file: the JSON text behind its eight bytes of length. "" when another
// process downloads the file or the blob is there: it has been checked. Its bytes are kept for
// FetchBlob. INVALID_ARGUMENT: it is no safetensors file.
Result<std::string> FetchSafetensorsHeader(const PullContext& context, const HubFile& file,
                                           HubHttp& http);

}  // namespace aisp
