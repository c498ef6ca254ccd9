#include "kvcache/ucx/mapped_memory.h"

#include <fcntl.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvcache/transport/cookie.h"

namespace aisp::ucx {
namespace {

constexpr const char* kLane = "ucx-memory1";
// A live process of this host answers at once; after 200 ms the writer continues without
// (writer.cc).
constexpr Duration kMapTime = std::chrono::milliseconds(100);

MemoryMapper::Mapped MapMemory(const Memory& memory) {
  const auto end = std::ranges::find(memory.descriptor, 0);
  const std::string_view descriptor(memory.descriptor.data(),
                                    static_cast<size_t>(end - memory.descriptor.begin()));
  AISP_ASSIGN_OR_RETURN(GrantedPool granted, AskForPool(kLane, descriptor, kMapTime));
  if (!granted.received.pool) return DataLoss("the writer sent no memory");
  AISP_RETURN_IF_ERROR(CheckSealed(granted.received.pool));
  AISP_ASSIGN_OR_RETURN(PoolMapping mapping,
                        PoolMapping::Map(granted.received.pool.get(),
                                         granted.received.reply.pool_bytes, MappingAccess::kRead));
  return std::make_shared<const PoolMapping>(std::move(mapping));
}

}  // namespace

Result<std::unique_ptr<MemoryOffer>> MemoryOffer::Open(const KvRegion& region, size_t max_owners) {
  if (region.handle < 0) return FailedPrecondition("this pool has no handle to be mapped by");
  // Owners only read: a fault of theirs must not damage this pool.
  const std::string path = fmt::format("/proc/self/fd/{}", region.handle);
  UniqueFd read_only(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!read_only) return tl::unexpected(SocketError("opening the pool to be read"));
  PoolOffer offer;
  offer.lane = kLane;
  offer.cookie = NewCookie();
  offer.reply.pool_bytes = region.bytes;
  offer.pool_fd = read_only.get();
  offer.scratch_fd = read_only.get();  // unused
  AISP_ASSIGN_OR_RETURN(std::unique_ptr<PoolListener> listener,
                        PoolListener::Start(offer, max_owners));
  if (listener->descriptor().size() >= std::tuple_size_v<decltype(Memory::descriptor)>)
    return Internal("the descriptor of a pool's memory is too long");
  return std::unique_ptr<MemoryOffer>(new MemoryOffer(std::move(read_only), std::move(listener)));
}

MemoryOffer::MemoryOffer(UniqueFd read_only, std::unique_ptr<PoolListener> listener)
    : read_only_(std::move(read_only)), listener_(std::move(listener)) {
  std::ranges::copy(listener_->descriptor(), message_.descriptor.begin());
}

MemoryMapper::MemoryMapper() : thread_("kv-ucx-map", [this] { Run(); }) {}

MemoryMapper::~MemoryMapper() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  there_.notify_one();
  thread_.Join();
}

void MemoryMapper::Map(const Memory& memory, std::function<void(Mapped)> done) {
  {
    std::lock_guard lock(mutex_);
    jobs_.push_back({memory, std::move(done)});
  }
  there_.notify_one();
}

void MemoryMapper::Run() {
  while (true) {
    Job job;
    {
      std::unique_lock lock(mutex_);
      there_.wait(lock, [this] { return stop_ || !jobs_.empty(); });
      if (stop_) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    job.done(MapMemory(job.memory));
  }
}

}  // namespace aisp::ucx
