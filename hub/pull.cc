#include "hub/pull.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/strings.h"
#include "hub/attempts.h"
#include "hub/blob_download.h"
#include "hub/cache.h"
#include "hub/http.h"

namespace aisp {
namespace {

namespace fs = std::filesystem;

constexpr const char* kIndex = "model.safetensors.index.json";
constexpr const char* kOneFile = "model.safetensors";
constexpr auto kTick = std::chrono::milliseconds(200);
// The sizes of one pull, shards and a few more files, can be added without overflow.
static_assert(INT64_MAX / kMaxFileBytes > static_cast<int64_t>(kMaxShards) + 64);
constexpr uint64_t kMaxSmallBytes = 64u << 20;  // limit for config.json and the index

// A running pull: steps in order, each over files in parallel.
class Puller {
 public:
  Puller(const HubOptions& options, const HubRepo& repo, const HubCache& cache, bool weights,
         const PullHooks& hooks)
      : options_(options), repo_(repo), cache_(cache), weights_(weights), hooks_(hooks) {}

  Result<Pulled> Run();

 private:
  using Task = std::function<Status(HubHttp&)>;

  Status FetchConfig();
  Status DescribeRest();
  Status DescribeWeights();
  Status CheckHeaders();
  Status CheckSpace();
  Status FetchAll();

  // Runs the tasks in order on at most `connections` threads. The first error stops all.
  Status RunParallel(std::vector<Task> tasks);
  Status RunOne(Task task);
  void Tick();
  // Sets `out`; leaves it empty when the hub has no such file.
  Task DescribeTask(const std::string& name, std::optional<HubFile>* out);
  Status FetchNow(const HubFile& file, std::string* text);
  Status Link(const HubFile& file) { return cache_.Link(commit_, file.name, file.hash); }
  void Expect(const HubFile& file);

  const HubOptions& options_;
  const HubRepo& repo_;
  const HubCache& cache_;
  const bool weights_;
  const PullHooks& hooks_;
  StopSign stop_;
  PullCounters counters_;
  const PullContext context_{options_, cache_, &stop_, &counters_};
  std::string commit_;
  std::string what_;
  uint64_t total_bytes_ = 0;
  uint64_t new_bytes_ = 0;
  std::vector<HubFile> small_;  // all files except the weights
  std::vector<HubFile> shards_;
};

void Puller::Tick() {
  if (hooks_.cancelled && hooks_.cancelled()) stop_.Stop();
  if (!hooks_.on_progress) return;
  PullProgress progress;
  progress.what = what_;
  progress.done_bytes = static_cast<uint64_t>(std::max<int64_t>(0, counters_.present.load()));
  progress.total_bytes = total_bytes_;
  progress.waiting = counters_.waiting.load();
  hooks_.on_progress(progress);
}

Status Puller::RunParallel(std::vector<Task> tasks) {
  if (tasks.empty()) return {};
  std::mutex mutex;
  std::condition_variable changed;
  Status first;
  size_t next = 0;
  const size_t count = std::min(tasks.size(), static_cast<size_t>(options_.connections));
  size_t running = count;
  const auto work = [&] {
    auto http = HubHttp::Create(options_, [this] { return stop_.stopped(); });
    for (;;) {
      const Task* task = nullptr;
      if (std::lock_guard lock(mutex); first && next < tasks.size()) task = &tasks[next++];
      if (task == nullptr) break;
      const Status status = http ? (*task)(**http) : Status(tl::unexpected(http.error()));
      if (status) continue;
      // Recorded before stopping the others, whose errors would be consequences.
      if (std::lock_guard lock(mutex); first) first = status;
      stop_.Stop();
    }
    std::lock_guard lock(mutex);
    --running;
    changed.notify_all();
  };
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 0; i < count; ++i) threads.emplace_back(work);
  {
    std::unique_lock lock(mutex);
    while (!changed.wait_for(lock, kTick, [&] { return running == 0; })) {
      lock.unlock();
      Tick();
      lock.lock();
    }
  }
  for (std::thread& thread : threads) thread.join();
  Tick();
  return first;
}

Status Puller::RunOne(Task task) {
  std::vector<Task> tasks;
  tasks.push_back(std::move(task));
  return RunParallel(std::move(tasks));
}

Puller::Task Puller::DescribeTask(const std::string& name, std::optional<HubFile>* out) {
  return [this, name, out](HubHttp& http) -> Status {
    auto file = Describe(context_, repo_, commit_, name, http);
    if (file) *out = std::move(*file);
    if (file || file.error().code != Code::kNotFound) {
      if (!file) return tl::unexpected(file.error());
      return {};
    }
    return cache_.NoteAbsent(commit_, name);
  };
}

void Puller::Expect(const HubFile& file) {
  const uint64_t present = BytesPresent(cache_, file);
  total_bytes_ += file.size;
  new_bytes_ += file.size - present;
  counters_.present += static_cast<int64_t>(present);
}

// Downloads a small file at once and reads it.
Status Puller::FetchNow(const HubFile& file, std::string* text) {
  if (file.size > kMaxSmallBytes) {
    return InvalidArgument(fmt::format("{} has {} bytes, more than {} that such a file may have",
                                       file.name, file.size, kMaxSmallBytes));
  }
  Expect(file);
  AISP_RETURN_IF_ERROR(RunOne([&](HubHttp& http) { return FetchBlob(context_, file, http); }));
  AISP_RETURN_IF_ERROR(Link(file));
  std::ifstream in(cache_.Blob(file.hash), std::ios::binary);
  *text = std::string(std::istreambuf_iterator<char>(in), {});
  small_.push_back(file);
  return {};
}

Status Puller::FetchConfig() {
  what_ = "config.json";
  HubFile config;
  AISP_RETURN_IF_ERROR(RunOne([&](HubHttp& http) -> Status {
    AISP_ASSIGN_OR_RETURN(config, Describe(context_, repo_, repo_.revision, "config.json", http));
    return {};
  }));
  commit_ = config.commit.empty() && IsCommit(repo_.revision) ? repo_.revision : config.commit;
  if (!IsCommit(commit_)) {
    return FailedPrecondition(
        fmt::format("{} does not say which commit {} is (x-repo-commit: '{}'); it is no hub of "
                    "Hugging Face's kind",
                    options_.endpoint, repo_.Shown(), Excerpt(commit_)));
  }
  std::string text;
  AISP_RETURN_IF_ERROR(FetchNow(config, &text));
  return hooks_.check_config ? hooks_.check_config(text) : Status{};
}

Status Puller::DescribeWeights() {
  what_ = "the weights' index";
  std::optional<HubFile> index, whole;
  AISP_RETURN_IF_ERROR(RunParallel({DescribeTask(kIndex, &index), DescribeTask(kOneFile, &whole)}));
  if (!index) {
    if (whole) {
      shards_.push_back(*whole);
      return {};
    }
    return NotFound(fmt::format("{} has neither {} nor {}: weights are read from safetensors only",
                                repo_.Shown(), kOneFile, kIndex));
  }
  std::string text;
  AISP_RETURN_IF_ERROR(FetchNow(*index, &text));
  AISP_ASSIGN_OR_RETURN(const auto names, ShardsOf(text, repo_.Shown() + " " + kIndex));
  if (hooks_.check_index) AISP_RETURN_IF_ERROR(hooks_.check_index(text));
  std::vector<std::optional<HubFile>> shards(names.size());
  std::vector<Task> tasks;
  tasks.reserve(names.size());
  for (size_t i = 0; i < names.size(); ++i) tasks.push_back(DescribeTask(names[i], &shards[i]));
  AISP_RETURN_IF_ERROR(RunParallel(std::move(tasks)));
  for (size_t i = 0; i < names.size(); ++i) {
    if (!shards[i]) {
      return NotFound(
          fmt::format("{}: its index names {}, which it does not have", repo_.Shown(), names[i]));
    }
    shards_.push_back(*shards[i]);
  }
  return {};
}

Status Puller::DescribeRest() {
  what_ = "the list of files";
  constexpr const char* kNames[] = {"generation_config.json", "tokenizer_config.json",
                                    "chat_template.jinja", "tokenizer.json"};
  std::optional<HubFile> found[std::size(kNames)], sentencepiece;
  std::vector<Task> tasks;
  tasks.reserve(std::size(kNames));
  for (size_t i = 0; i < std::size(kNames); ++i)
    tasks.push_back(DescribeTask(kNames[i], &found[i]));
  AISP_RETURN_IF_ERROR(RunParallel(std::move(tasks)));
  // Models with both tokenizers use the first; the second is for models without it.
  if (!found[std::size(kNames) - 1])
    AISP_RETURN_IF_ERROR(RunOne(DescribeTask("tokenizer.model", &sentencepiece)));
  const auto take = [this](const std::optional<HubFile>& file) {
    if (!file) return;
    Expect(*file);
    small_.push_back(*file);
  };
  for (const auto& file : found) take(file);
  take(sentencepiece);
  for (const HubFile& file : shards_) Expect(file);
  return {};
}

Status Puller::CheckSpace() {
  uint64_t needed = 0;
  for (const auto* files : {&small_, &shards_})
    for (const HubFile& file : *files) needed += file.size - BytesPresent(cache_, file);
  std::error_code error;
  const auto space = fs::space(cache_.folder(), error);
  if (error || needed <= space.available) return {};
  return ResourceExhausted(fmt::format(
      "the disk of {} is too small for {}: {} bytes ({}) are needed, {} ({}) are free; free some, "
      "or set HF_HOME to a larger disk",
      cache_.folder(), repo_.Shown(), needed, HumanBytes(needed), space.available,
      HumanBytes(space.available)));
}

Status Puller::CheckHeaders() {
  what_ = "the weights' headers";
  std::vector<std::string> headers(shards_.size());
  std::vector<Task> tasks;
  tasks.reserve(shards_.size());
  for (size_t i = 0; i < shards_.size(); ++i) {
    tasks.push_back([this, i, &headers](HubHttp& http) -> Status {
      AISP_ASSIGN_OR_RETURN(headers[i], FetchSafetensorsHeader(context_, shards_[i], http));
      return {};
    });
  }
  AISP_RETURN_IF_ERROR(RunParallel(std::move(tasks)));
  if (!hooks_.check_header) return {};
  for (size_t i = 0; i < shards_.size(); ++i) {
    if (headers[i].empty()) continue;
    const HubFile& file = shards_[i];
    AISP_RETURN_IF_ERROR(
        hooks_.check_header(file.name, headers[i], file.size - 8 - headers[i].size()));
  }
  return {};
}

Status Puller::FetchAll() {
  what_ = fmt::format("{} files", small_.size() + shards_.size());
  std::vector<Task> tasks;
  for (const auto* files : {&small_, &shards_}) {
    for (const HubFile& file : *files) {
      tasks.push_back([this, &file](HubHttp& http) -> Status {
        AISP_RETURN_IF_ERROR(FetchBlob(context_, file, http));
        return Link(file);
      });
    }
  }
  return RunParallel(std::move(tasks));
}

Result<Pulled> Puller::Run() {
  AISP_RETURN_IF_ERROR(cache_.Prepare());
  AISP_RETURN_IF_ERROR(FetchConfig());
  if (weights_) AISP_RETURN_IF_ERROR(DescribeWeights());
  AISP_RETURN_IF_ERROR(DescribeRest());
  AISP_RETURN_IF_ERROR(CheckSpace());
  AISP_RETURN_IF_ERROR(CheckHeaders());
  AISP_RETURN_IF_ERROR(FetchAll());
  // Last, so that a complete revision remains until the new one is complete. Without weights only
  // if there was none.
  if (weights_ || cache_.Commit().empty()) AISP_RETURN_IF_ERROR(cache_.WriteRef(commit_));
  Pulled pulled;
  pulled.folder = cache_.Snapshot(commit_);
  pulled.commit = commit_;
  pulled.files = static_cast<int>(small_.size() + shards_.size());
  pulled.bytes = total_bytes_;
  pulled.new_bytes = new_bytes_;
  return pulled;
}

}  // namespace

Result<Pulled> Pull(const HubOptions& options, const HubRepo& repo, bool weights,
                    const PullHooks& hooks) {
  if (options.offline) {
    return FailedPrecondition(
        fmt::format("{} is not downloaded: HF_HUB_OFFLINE is set", repo.Shown()));
  }
  AISP_ASSIGN_OR_RETURN(const HubCache cache, HubCache::At(options, repo));
  return Puller(options, repo, cache, weights, hooks).Run();
}

}  // namespace aisp
