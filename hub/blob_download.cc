#include "hub/blob_download.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <filesystem>
#include <vector>

#include "common/clock.h"
#include "common/strings.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // safetensors' own limit
constexpr uint64_t kFirstPiece = 64 * 1024;        // holds the header of most files

// Returned by callbacks to end a transfer that has brought enough.
const Error kEnough{Code::kAborted, "enough"};

class BlobDownload {
 public:
  BlobDownload(const PullContext& context, const HubFile& file, ContentHash hash, int fd)
      : context_(context), file_(file), hash_(std::move(hash)), fd_(fd) {}
  ~BlobDownload() { close(fd_); }
  BlobDownload(const BlobDownload&) = delete;
  BlobDownload& operator=(const BlobDownload&) = delete;

  // Resumes from what is on disk. The caller holds the lock.
  static Result<std::unique_ptr<BlobDownload>> Open(const PullContext& context,
                                                    const HubFile& file);
  // Downloads until `end` bytes are there.
  Status FetchTo(uint64_t end, HubHttp& http);
  // The first `bytes`, which must have been downloaded.
  Result<std::string> Begin(uint64_t bytes) const;
  // Checks the hash and turns the file into a blob. DATA_LOSS: the content was deleted.
  Status Finish();

 private:
  Status Resume();
  Status Restart();
  Status Append(std::string_view bytes, uint64_t end);
  Status OnHead(const HubReply& reply);
  Result<HubReply> Request(uint64_t end, HubHttp& http);
  Error WriteError(int error) const;

  const PullContext& context_;
  const HubFile& file_;
  ContentHash hash_;
  const int fd_;
  uint64_t have_ = 0;
};

Result<std::unique_ptr<BlobDownload>> BlobDownload::Open(const PullContext& context,
                                                         const HubFile& file) {
  AISP_ASSIGN_OR_RETURN(ContentHash hash, ContentHash::For(file.hash, file.size));
  const std::string path = context.cache.Incomplete(file.hash);
  const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0644);
  if (fd < 0) return FailedPrecondition(fmt::format("{}: {}", path, std::strerror(errno)));
  auto download = std::make_unique<BlobDownload>(context, file, std::move(hash), fd);
  AISP_RETURN_IF_ERROR(download->Resume());
  return download;
}

Status BlobDownload::Resume() {
  struct stat st {};
  if (fstat(fd_, &st) != 0) return Internal(fmt::format("fstat: {}", std::strerror(errno)));
  const auto found = static_cast<uint64_t>(st.st_size);
  if (found > file_.size) {
    context_.counters->present -= static_cast<int64_t>(file_.size);  // as counted by BytesPresent
    return Restart();
  }
  std::vector<char> piece(1 << 20);
  while (have_ < found) {
    if (context_.stop->stopped()) return Fail(Code::kCancelled, "stopped");
    const ssize_t n = pread(fd_, piece.data(), piece.size(), static_cast<off_t>(have_));
    if (n <= 0) return Internal(fmt::format("reading what is there: {}", std::strerror(errno)));
    hash_.Update({piece.data(), static_cast<size_t>(n)});
    have_ += static_cast<uint64_t>(n);
  }
  return {};
}

Status BlobDownload::Restart() {
  AISP_ASSIGN_OR_RETURN(hash_, ContentHash::For(file_.hash, file_.size));
  context_.counters->present -= static_cast<int64_t>(have_);
  have_ = 0;
  if (ftruncate(fd_, 0) != 0) return Internal(fmt::format("ftruncate: {}", std::strerror(errno)));
  return {};
}

Error BlobDownload::WriteError(int error) const {
  if (error != ENOSPC && error != EDQUOT)
    return {Code::kInternal, fmt::format("{}: {}", file_.name, std::strerror(error))};
  std::error_code ignored;
  const auto space = fs::space(context_.cache.folder(), ignored);
  const uint64_t left = file_.size - have_;
  return {Code::kResourceExhausted,
          fmt::format("the disk of {} is full: {} needs {} bytes more ({}), {} are free; what has "
                      "come is kept: free some, or set HF_HOME to a larger disk, and try again",
                      context_.cache.folder(), file_.name, left, HumanBytes(left),
                      ignored ? 0 : space.available)};
}

Status BlobDownload::Append(std::string_view bytes, uint64_t end) {
  if (bytes.size() > file_.size - have_) {
    AISP_RETURN_IF_ERROR(Restart());
    return DataLoss(fmt::format("{}: more than the {} bytes that the hub announced come",
                                file_.name, file_.size));
  }
  const std::string_view wanted = bytes.substr(0, end - have_);
  size_t done = 0;
  while (done < wanted.size()) {
    const ssize_t n =
        pwrite(fd_, wanted.data() + done, wanted.size() - done, static_cast<off_t>(have_));
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return tl::unexpected(WriteError(n == 0 ? ENOSPC : errno));
    hash_.Update(wanted.substr(done, static_cast<size_t>(n)));
    done += static_cast<size_t>(n);
    have_ += static_cast<uint64_t>(n);
    context_.counters->present += n;
  }
  if (have_ == end && end < file_.size) return tl::unexpected(kEnough);
  return {};
}

Status BlobDownload::OnHead(const HubReply& reply) {
  if (reply.status == 200) return have_ == 0 ? Status{} : Restart();  // the server ignores ranges
  const std::string range = reply.Header("content-range");
  const std::string wanted = fmt::format("bytes {}-", have_);
  if (range.starts_with(wanted)) return {};
  return Unavailable(fmt::format("{}: the server sends '{}' where '{}...' was asked for",
                                 file_.name, Excerpt(range), wanted));
}

Result<HubReply> BlobDownload::Request(uint64_t end, HubHttp& http) {
  HubQuery query;
  query.url = file_.url;
  query.ranged = have_ > 0 || end < file_.size;
  query.from = have_;
  query.to = end < file_.size ? end : 0;
  query.on_head = [this](const HubReply& reply) { return OnHead(reply); };
  query.on_bytes = [this, end](std::string_view bytes) { return Append(bytes, end); };
  return http.Perform(query);
}

Status BlobDownload::FetchTo(uint64_t end, HubHttp& http) {
  Attempts attempts(context_.options, context_.stop);
  uint64_t most = have_;
  while (have_ < end) {
    const auto reply = Request(end, http);
    if (have_ >= end) break;
    Error error;
    int64_t retry_after = 0;
    if (!reply) {
      error = reply.error();
    } else if (reply->status == 416) {
      AISP_RETURN_IF_ERROR(Restart());
      error = {Code::kUnavailable, file_.name + ": the server has no such range of it"};
    } else if (reply->status == 200 || reply->status == 206) {
      error = {Code::kUnavailable, fmt::format("{}: the connection ended after {} of {} bytes",
                                               file_.name, have_, file_.size)};
    } else {
      error = ErrorOf(*reply, file_.name, context_.options);
      retry_after = RetryAfter(*reply);
    }
    const bool progressed = have_ > most;
    most = std::max(most, have_);
    AISP_RETURN_IF_ERROR(attempts.Next(error, progressed, retry_after));
  }
  return {};
}

Result<std::string> BlobDownload::Begin(uint64_t bytes) const {
  std::string text(bytes, '\0');
  uint64_t done = 0;
  while (done < bytes) {
    const ssize_t n = pread(fd_, text.data() + done, bytes - done, static_cast<off_t>(done));
    if (n <= 0) return Internal(fmt::format("{}: {}", file_.name, std::strerror(errno)));
    done += static_cast<uint64_t>(n);
  }
  return text;
}

Status BlobDownload::Finish() {
  const std::string got = hash_.Hex();
  if (got != file_.hash) {
    AISP_RETURN_IF_ERROR(Restart());
    return DataLoss(
        fmt::format("{}: its {} bytes have the hash {}, the hub says {}; nothing of it "
                    "is kept",
                    file_.name, file_.size, got, file_.hash));
  }
  if (fsync(fd_) != 0) return tl::unexpected(WriteError(errno));
  const std::string from = context_.cache.Incomplete(file_.hash);
  const std::string to = context_.cache.Blob(file_.hash);
  if (rename(from.c_str(), to.c_str()) != 0)
    return Internal(fmt::format("{}: {}", to, std::strerror(errno)));
  return {};
}

bool BlobIsThere(const HubCache& cache, const HubFile& file) {
  std::error_code error;
  const uintmax_t size = fs::file_size(cache.Blob(file.hash), error);
  return !error && size == file.size;
}

uint64_t IncompleteBytes(const HubCache& cache, const HubFile& file) {
  std::error_code error;
  const uintmax_t size = fs::file_size(cache.Incomplete(file.hash), error);
  return error ? 0 : std::min<uint64_t>(size, file.size);
}

// Waits for another process's download, showing its progress; an error when it stalls.
Result<FileLock> AwaitLock(const PullContext& context, const HubFile& file) {
  const std::string path = context.cache.Lock(file.hash);
  AISP_ASSIGN_OR_RETURN(auto at_once, FileLock::Try(path));
  if (at_once) return std::move(*at_once);
  const SteadyClock clock;
  Instant moved = clock.Now();
  uint64_t seen = IncompleteBytes(context.cache, file);
  ++context.counters->waiting;
  auto lock = FileLock::Wait(path, [&]() -> Status {
    if (context.stop->stopped()) return Fail(Code::kCancelled, "stopped");
    const uint64_t now = IncompleteBytes(context.cache, file);
    if (now > seen) {
      context.counters->present += static_cast<int64_t>(now - seen);
      seen = now;
      moved = clock.Now();
    }
    if (clock.Now() - moved < std::chrono::seconds(context.options.lock_wait_s)) return {};
    return Fail(Code::kDeadlineExceeded,
                fmt::format("{}: another process holds {} and has downloaded nothing for {} s; end "
                            "it, or try again later",
                            file.name, path, context.options.lock_wait_s));
  });
  --context.counters->waiting;
  if (!lock) return lock;
  const uint64_t present = BytesPresent(context.cache, file);
  context.counters->present += static_cast<int64_t>(present) - static_cast<int64_t>(seen);
  return lock;
}

std::string Unquoted(std::string tag) {
  if (tag.starts_with("W/")) tag.erase(0, 2);
  if (tag.size() >= 2 && tag.front() == '"' && tag.back() == '"')
    tag = tag.substr(1, tag.size() - 2);
  return tag;
}

std::string Escaped(const std::string& revision) {
  std::string out;
  for (const char c : revision) out += c == '/' ? "%2F" : c == '+' ? "%2B" : std::string(1, c);
  return out;
}

Result<HubFile> FileOf(const HubReply& reply, HubFile file, const std::string& what) {
  const std::string linked = reply.Header("x-linked-etag");
  file.hash = Unquoted(linked.empty() ? reply.Header("etag") : linked);
  file.commit = reply.Header("x-repo-commit");
  const std::string size =
      linked.empty() ? reply.Header("content-length") : reply.Header("x-linked-size");
  const auto bytes = ParseIntInRange(size, 0, kMaxFileBytes);
  if (!bytes) {
    return FailedPrecondition(fmt::format(
        "{}: the hub says no size of it ('{}'), so it could not be checked", what, Excerpt(size)));
  }
  file.size = static_cast<uint64_t>(*bytes);
  const auto hash = ContentHash::For(file.hash, file.size);
  if (!hash) return tl::unexpected(hash.error().WithContext(what + ": its ETag"));
  return file;
}

}  // namespace

Result<HubFile> Describe(const PullContext& context, const HubRepo& repo,
                         const std::string& revision, const std::string& name, HubHttp& http) {
  HubFile file;
  file.name = name;
  file.url = fmt::format("{}/{}/resolve/{}/{}", context.options.endpoint, repo.Id(),
                         Escaped(revision), name);
  const std::string what = fmt::format("{} of {}", name, repo.Shown());
  HubQuery query;
  query.url = file.url;
  query.head = true;
  Attempts attempts(context.options, context.stop);
  for (;;) {
    const auto reply = http.Perform(query);
    const bool answered = reply && reply->status < 400;
    if (answered) return FileOf(*reply, std::move(file), what);
    const Error error = reply ? ErrorOf(*reply, what, context.options) : reply.error();
    AISP_RETURN_IF_ERROR(attempts.Next(error, false, reply ? RetryAfter(*reply) : 0));
  }
}

uint64_t BytesPresent(const HubCache& cache, const HubFile& file) {
  return BlobIsThere(cache, file) ? file.size : IncompleteBytes(cache, file);
}

Status FetchBlob(const PullContext& context, const HubFile& file, HubHttp& http) {
  if (BlobIsThere(context.cache, file)) return {};
  AISP_ASSIGN_OR_RETURN(const FileLock lock, AwaitLock(context, file));
  if (BlobIsThere(context.cache, file)) return {};
  // A wrong hash may be due to old content on disk, so download once more from the start.
  for (bool again = true;; again = false) {
    AISP_ASSIGN_OR_RETURN(const auto download, BlobDownload::Open(context, file));
    Status status = download->FetchTo(file.size, http);
    if (status) status = download->Finish();
    if (status || status.error().code != Code::kDataLoss || !again) return status;
  }
}

Result<std::string> FetchSafetensorsHeader(const PullContext& context, const HubFile& file,
                                           HubHttp& http) {
  if (BlobIsThere(context.cache, file)) return std::string();
  AISP_ASSIGN_OR_RETURN(const auto lock, FileLock::Try(context.cache.Lock(file.hash)));
  if (!lock) return std::string();
  AISP_ASSIGN_OR_RETURN(const auto download, BlobDownload::Open(context, file));
  const auto wrong = [&](const std::string& what) {
    return InvalidArgument(fmt::format("{}: {}; not a safetensors file", file.name, what));
  };
  if (file.size < 8) return wrong(fmt::format("{} bytes", file.size));
  AISP_RETURN_IF_ERROR(download->FetchTo(std::min(file.size, kFirstPiece), http));
  AISP_ASSIGN_OR_RETURN(const std::string begin, download->Begin(8));
  uint64_t bytes = 0;
  std::memcpy(&bytes, begin.data(), sizeof bytes);
  if (bytes > std::min(kMaxHeaderBytes, file.size - 8))
    return wrong(fmt::format("a header of {} bytes is announced", bytes));
  AISP_RETURN_IF_ERROR(download->FetchTo(8 + bytes, http));
  AISP_ASSIGN_OR_RETURN(const std::string text, download->Begin(8 + bytes));
  return text.substr(8);
}

}  // namespace aisp
