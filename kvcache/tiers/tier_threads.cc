#include "kvcache/tiers/tier_threads.h"

#include <algorithm>
#include <array>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "common/check.h"
#include "common/threads.h"

namespace aisp {

struct TierThreads::Shared {
  std::mutex mutex;
  std::vector<TierDone> done;
};

// One thread and its queues: loads before stores, each in order. An asynchronous copy is awaited
// after the next one has started, so that the device never idles.
class TierThreads::Lane {
 public:
  static constexpr int kPlaces = 2;
  // Starts a job's copy; `place`: one of kPlaces buffers, unused by other jobs until awaited.
  using Copy = std::function<Status(const TierJob&, int place)>;
  // Null: a copy is complete when started.
  using Await = std::function<Status(int place)>;
  Lane(const std::string& name, size_t max_jobs, Copy copy, Await await,
       std::function<void(TierDone)> finish)
      : max_jobs_(max_jobs),
        copy_(std::move(copy)),
        await_(std::move(await)),
        finish_(std::move(finish)),
        thread_(name, [this] { Run(); }) {}
  ~Lane() {
    {
      std::lock_guard lock(mutex_);
      stop_ = true;
    }
    wake_.notify_one();
  }

  bool Submit(const TierJob& job) {
    {
      std::lock_guard lock(mutex_);
      std::deque<TierJob>& queue = job.to.place == TierPlace::kPool ? loads_ : stores_;
      if (stop_ || queue.size() >= max_jobs_) return false;
      queue.push_back(job);
    }
    wake_.notify_one();
    return true;
  }

 private:
  struct Started {
    uint64_t id;
    Status status;
    Instant begin;
    int place;
  };

  // Empty at shutdown, and without `waits` also when the queues are empty.
  std::optional<TierJob> Next(bool waits) {
    std::unique_lock lock(mutex_);
    const auto ready = [this] { return stop_ || !loads_.empty() || !stores_.empty(); };
    if (waits) wake_.wait(lock, ready);
    if (stop_ || !ready()) return std::nullopt;
    std::deque<TierJob>& queue = loads_.empty() ? stores_ : loads_;
    const TierJob job = queue.front();
    queue.pop_front();
    return job;
  }

  void Run() {
    std::optional<Started> before;
    int place = 0;
    while (true) {
      const std::optional<TierJob> job = Next(/*waits=*/!before);
      if (!job && !before) return;
      std::optional<Started> now;
      if (job) {
        place = (place + 1) % kPlaces;
        const Instant begin = clock_.Now();
        now = Started{job->id, copy_(*job, place), begin, place};
      }
      if (before) End(std::move(*before));
      before = std::move(now);
      if (before && (!await_ || !before->status)) {
        End(std::move(*before));
        before.reset();
      }
    }
  }

  // Its duration starts when the previous job ended, if that is later.
  void End(Started job) {
    if (await_ && job.status) job.status = await_(job.place);
    const Instant now = clock_.Now();
    finish_({job.id, std::move(job.status), now - std::max(job.begin, ended_)});
    ended_ = now;
  }

  const size_t max_jobs_;
  const Copy copy_;
  const Await await_;
  const std::function<void(TierDone)> finish_;
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<TierJob> loads_;
  std::deque<TierJob> stores_;
  bool stop_ = false;
  const SteadyClock clock_;
  Instant ended_;
  Thread thread_;  // last: it uses all the others
};

TierThreads::TierThreads(Options options, Device& device)
    : options_(std::move(options)), device_(device), shared_(std::make_unique<Shared>()) {}

TierThreads::~TierThreads() = default;

Result<std::unique_ptr<TierThreads>> TierThreads::Start(Options options, Device& device) {
  std::unique_ptr<TierThreads> threads(new TierThreads(std::move(options), device));
  AISP_RETURN_IF_ERROR(threads->Begin());
  return threads;
}

Status TierThreads::Begin() {
  const auto finish = [this](TierDone done) {
    {
      std::lock_guard lock(shared_->mutex);
      shared_->done.push_back(std::move(done));
    }
    if (options_.on_done) options_.on_done();
  };
  if (options_.host_slots > 0) {
    const size_t bytes = options_.layout.BlockBytes() * static_cast<size_t>(options_.host_slots);
    AISP_ASSIGN_OR_RETURN(host_, device_.Allocate(bytes, MemoryKind::kHost));
    std::array<std::shared_ptr<Path>, Lane::kPlaces> paths;
    for (auto& path : paths) {
      AISP_ASSIGN_OR_RETURN(path, MakePath());
    }
    host_lane_ = std::make_unique<Lane>(
        "kv-host", options_.max_jobs,
        [this, paths](const TierJob& job, int place) {
          return CopyHost(job, *paths[static_cast<size_t>(place)]);
        },
        [this, paths](int place) {
          return device_.Synchronize(*paths[static_cast<size_t>(place)]->stream);
        },
        finish);
  }
  if (options_.disk == nullptr) return {};
  constexpr size_t kAlign = BlockFile::kAlignment;
  const size_t slot = options_.disk->slot_bytes();
  AISP_ASSIGN_OR_RETURN(bounce_memory_, device_.Allocate(slot + kAlign, MemoryKind::kHost));
  const auto address = reinterpret_cast<uintptr_t>(bounce_memory_.data());
  const size_t skip = (kAlign - address % kAlign) % kAlign;
  bounce_ = {static_cast<std::byte*>(bounce_memory_.data()) + skip, slot};
  AISP_ASSIGN_OR_RETURN(std::shared_ptr<Path> path, MakePath());
  disk_lane_ = std::make_unique<Lane>(
      "kv-disk", options_.max_jobs,
      [this, path](const TierJob& job, int /*place*/) { return CopyDisk(job, *path); },
      /*await=*/nullptr, finish);
  return {};
}

bool TierThreads::Submit(const TierJob& job) {
  const bool disk = job.from.place == TierPlace::kDisk || job.to.place == TierPlace::kDisk;
  Lane* lane = disk ? disk_lane_.get() : host_lane_.get();
  return lane != nullptr && lane->Submit(job);
}

void TierThreads::TakeDone(std::vector<TierDone>* done) {
  std::lock_guard lock(shared_->mutex);
  for (TierDone& d : shared_->done) done->push_back(std::move(d));
  shared_->done.clear();
}

std::byte* TierThreads::HostSlot(int32_t slot) const {
  return static_cast<std::byte*>(host_.data()) +
         options_.layout.BlockBytes() * static_cast<size_t>(slot);
}

Result<std::shared_ptr<TierThreads::Path>> TierThreads::MakePath() {
  auto path = std::make_shared<Path>();
  AISP_ASSIGN_OR_RETURN(path->stream, device_.CreateStream());
  if (device_.info().kind != "cpu") {
    AISP_ASSIGN_OR_RETURN(path->whole,
                          device_.Allocate(options_.layout.BlockBytes(), MemoryKind::kDevice));
  }
  return path;
}

Status TierThreads::Gather(int32_t block, std::byte* bytes, Path& path) {
  const KvLayout& kv = options_.layout;
  std::vector<CopyRange> ranges;
  ranges.reserve(static_cast<size_t>(kv.num_layers));
  for (int32_t layer = 0; layer < kv.num_layers; ++layer)
    ranges.push_back({kv.Offset(layer, BlockId(block)),
                      kv.LayerBlockBytes() * static_cast<size_t>(layer), kv.LayerBlockBytes()});
  if (path.whole.data() == nullptr)
    return device_.CopyRanges(bytes, options_.pool, ranges, *path.stream);
  AISP_RETURN_IF_ERROR(device_.CopyRanges(path.whole.data(), options_.pool, ranges, *path.stream));
  return device_.Copy(bytes, path.whole.data(), kv.BlockBytes(), *path.stream);
}

Status TierThreads::Scatter(const std::byte* bytes, int32_t block, Path& path) {
  const KvLayout& kv = options_.layout;
  std::vector<CopyRange> ranges;
  ranges.reserve(static_cast<size_t>(kv.num_layers));
  for (int32_t layer = 0; layer < kv.num_layers; ++layer)
    ranges.push_back({kv.LayerBlockBytes() * static_cast<size_t>(layer),
                      kv.Offset(layer, BlockId(block)), kv.LayerBlockBytes()});
  if (path.whole.data() != nullptr) {
    AISP_RETURN_IF_ERROR(device_.Copy(path.whole.data(), bytes, kv.BlockBytes(), *path.stream));
    bytes = static_cast<const std::byte*>(path.whole.data());
  }
  return device_.CopyRanges(options_.pool, bytes, ranges, *path.stream);
}

Status TierThreads::CopyHost(const TierJob& job, Path& path) {
  if (job.to.place == TierPlace::kPool)
    return Scatter(HostSlot(job.from.index), job.to.index, path);
  return Gather(job.from.index, HostSlot(job.to.index), path);
}

Status TierThreads::CopyDisk(const TierJob& job, Path& path) {
  std::byte* payload = bounce_.data() + DiskStore::kHeaderBytes;
  if (job.to.place == TierPlace::kPool) {
    AISP_RETURN_IF_ERROR(options_.disk->Read(job.from.index, job.key, bounce_));
    AISP_RETURN_IF_ERROR(Scatter(payload, job.to.index, path));
    return device_.Synchronize(*path.stream);
  }
  if (job.from.place == TierPlace::kHost) {
    std::memcpy(payload, HostSlot(job.from.index), options_.layout.BlockBytes());
  } else {
    AISP_RETURN_IF_ERROR(Gather(job.from.index, payload, path));
    AISP_RETURN_IF_ERROR(device_.Synchronize(*path.stream));
  }
  return options_.disk->Write({job.to.index, job.key, job.parent, job.position, job.units},
                              bounce_);
}

}  // namespace aisp
