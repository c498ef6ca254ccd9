#include "kvcache/transport/cuda_ipc.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "kvcache/transport/cookie.h"
#include "kvcache/transport/note_box.h"
#include "kvcache/transport/pool_listener.h"
#include "kvcache/transport/pool_socket.h"

namespace aisp {
namespace {

constexpr const char* kLane = "cudaipc1";

Result<PoolHandle> HandleOf(const Device& device, const Buffer& buffer) {
  AISP_ASSIGN_OR_RETURN(const MemoryHandle exported, device.Export(buffer));
  PoolHandle handle;
  if (exported.device_kind.size() >= sizeof(handle.device_kind))
    return Internal("a device kind too long to be sent: " + exported.device_kind);
  std::memcpy(handle.device_kind, exported.device_kind.data(), exported.device_kind.size());
  handle.bytes = exported.bytes;
  handle.opaque = exported.opaque;
  return handle;
}

// `fd`: for host memory, else -1.
Result<Buffer> Map(Device& device, const PoolHandle& handle, int fd) {
  MemoryHandle exported;
  exported.device_kind.assign(handle.device_kind,
                              strnlen(handle.device_kind, sizeof(handle.device_kind)));
  exported.bytes = handle.bytes;
  exported.opaque = handle.opaque;
  exported.fd = fd;
  return device.Import(exported);
}

Status CopyNow(Device& device, void* target, const void* source, size_t bytes) {
  AISP_ASSIGN_OR_RETURN(const auto stream, device.CreateStream());
  AISP_RETURN_IF_ERROR(device.Copy(target, source, bytes, *stream));
  return device.Synchronize(*stream);
}

// A peer's pool, mapped into this process.
class IpcPeer final : public MemoryTransport::Peer {
 public:
  IpcPeer(Device& device, UniqueFd socket, const Hash128& token, Buffer pool, Buffer scratch,
          std::unique_ptr<Stream> stream, std::vector<std::unique_ptr<Event>> events,
          std::optional<NoteBox> notes)
      : device_(device),
        socket_(std::move(socket)),
        token_(token.ToHex()),
        pool_(std::move(pool)),
        scratch_(std::move(scratch)),
        stream_(std::move(stream)),
        events_(std::move(events)),
        notes_(std::move(notes)) {}

  // A Warm may still be running.
  ~IpcPeer() override { (void)device_.Synchronize(*stream_); }

  uint64_t bytes() const override { return pool_.bytes(); }

  Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch) override {
    // The owner's memory may be gone with the owner.
    AISP_RETURN_IF_ERROR(Alive());
    ranges_.clear();
    for (const BlockCopy& copy : copies) {
      if (copy.bytes > 0) ranges_.push_back({copy.src_offset, copy.dst_offset, copy.bytes});
    }
    Status begun = device_.CopyRanges(pool_.data(), source, ranges_, *stream_);
    if (begun) begun = device_.Record(*events_[begun_ % kDepth], *stream_);
    if (begun) {
      ++begun_;
    } else {
      (void)device_.Synchronize(*stream_);  // nothing may land after the error
    }
    return begun;
  }
  size_t depth() const override { return kDepth; }
  // Copies a little into the owner's scratch memory: an idle link takes time to wake.
  void Warm(const std::byte* source) override {
    if (!Alive()) return;
    std::array<CopyRange, kWarmRanges> ranges;
    for (size_t i = 0; i < kWarmRanges; ++i)
      ranges[i] = {i * kWarmBytes, i * kWarmBytes, kWarmBytes};
    (void)device_.CopyRanges(static_cast<std::byte*>(scratch_.data()) + kCookieRoom, source, ranges,
                             *stream_);
  }
  Status Await() override {
    AISP_RETURN_IF_ERROR(device_.Synchronize(*events_[awaited_++ % kDepth]));
    // If the owner is gone, nobody receives the bytes.
    return Alive();
  }

  Status Alive() override { return OwnerAlive(socket_.get()); }
  std::string token() const override { return token_; }
  bool Leave(std::string_view note) override { return notes_ && notes_->Put(note); }

  // Uses its own memory and stream: the progress thread may be copying.
  Result<double> Measure(Duration limit) override {
    const size_t bytes = scratch_.bytes() - kCookieRoom;
    AISP_ASSIGN_OR_RETURN(const Buffer source, device_.Allocate(bytes, MemoryKind::kDevice));
    AISP_ASSIGN_OR_RETURN(const auto stream, device_.CreateStream());
    auto* target = static_cast<std::byte*>(scratch_.data()) + kCookieRoom;
    const auto start = std::chrono::steady_clock::now();
    Duration best = Duration::max();
    int rounds = 0;
    // The first round includes one-time setup.
    for (auto now = start; now - start < limit || rounds < 2; ++rounds) {
      AISP_RETURN_IF_ERROR(device_.Copy(target, source.data(), bytes, *stream));
      AISP_RETURN_IF_ERROR(device_.Synchronize(*stream));
      const auto then = std::chrono::steady_clock::now();
      best = std::min<Duration>(best, std::max<Duration>(then - now, Duration(1)));
      now = then;
    }
    return static_cast<double>(bytes) / ToSeconds(best);
  }

  static constexpr size_t kCookieRoom = 4096;
  // Enough for a kernel (kFewRanges) that uses every lane of the link.
  static constexpr size_t kWarmRanges = 8, kWarmBytes = 8192;
  // Writes queued on the device: the running one and the next ones.
  static constexpr size_t kDepth = 3;

 private:
  Device& device_;
  const UniqueFd socket_;
  const std::string token_;
  const Buffer pool_;
  const Buffer scratch_;
  const std::unique_ptr<Stream> stream_;  // the progress thread's
  const std::vector<std::unique_ptr<Event>> events_;
  std::optional<NoteBox> notes_;  // the engine thread's
  size_t begun_ = 0, awaited_ = 0;
  std::vector<CopyRange> ranges_;  // the progress thread's scratch memory
};

}  // namespace

CudaIpcTransport::CudaIpcTransport(const Options& options)
    : MemoryTransport({.name = "cuda_ipc",
                       .crosses_process = true,
                       .crosses_host = false,
                       .owner_copies = false,
                       .notes = true,
                       .rank = 90},
                      options.max_writes),
      options_(options) {}

CudaIpcTransport::~CudaIpcTransport() { StopWriting(); }

Status CudaIpcTransport::Register(const KvRegion& region) {
  if (region.base != nullptr && (region.device == nullptr || region.buffer == nullptr)) {
    return FailedPrecondition("the lane cuda_ipc is for pools in a GPU's memory; this one is not");
  }
  return MemoryTransport::Register(region);
}

Result<std::string> CudaIpcTransport::Descriptor() {
  if (region().base == nullptr) return FailedPrecondition("register a pool before offering it");
  if (listener_ != nullptr) return listener_->descriptor();
  Device& device = *region().device;
  PoolOffer offer;
  offer.lane = kLane;
  offer.cookie = NewCookie();
  AISP_ASSIGN_OR_RETURN(scratch_, device.Allocate(options_.scratch_bytes, MemoryKind::kShareable));
  AISP_RETURN_IF_ERROR(CopyNow(device, scratch_.data(), &offer.cookie, sizeof(offer.cookie)));
  AISP_ASSIGN_OR_RETURN(offer.reply.pool, HandleOf(device, *region().buffer));
  AISP_ASSIGN_OR_RETURN(offer.reply.scratch, HandleOf(device, scratch_));
  offer.reply.pool_bytes = region().bytes;
  offer.pool_fd = region().buffer->fd();
  offer.scratch_fd = scratch_.fd();
  offer.notes = true;
  offer.processes_only = true;  // the driver may still write after the connection has ended
  AISP_ASSIGN_OR_RETURN(listener_, PoolListener::Start(offer, options_.max_writers));
  return listener_->descriptor();
}

Result<PeerWatch> CudaIpcTransport::WatchWriter(std::string_view token) {
  if (listener_ == nullptr)
    return NotFound("this pool is not offered, so nobody is connected to it");
  return listener_->WatchWriter(token);
}

bool CudaIpcTransport::HasNotes() { return listener_ != nullptr && listener_->HasNotes(); }

bool CudaIpcTransport::TakeNote(std::string* token, std::string* note) {
  return listener_ != nullptr && listener_->TakeNote(token, note);
}

Result<std::shared_ptr<MemoryTransport::Peer>> CudaIpcTransport::Open(std::string_view descriptor,
                                                                      Duration timeout) {
  Device& device = *region().device;
  AISP_ASSIGN_OR_RETURN(GrantedPool granted, AskForPool(kLane, descriptor, timeout));
  const ReceivedReply& received = granted.received;
  AISP_ASSIGN_OR_RETURN(Buffer pool, Map(device, received.reply.pool, received.pool.get()));
  AISP_ASSIGN_OR_RETURN(Buffer scratch,
                        Map(device, received.reply.scratch, received.scratch.get()));
  if (pool.bytes() != received.reply.pool_bytes || scratch.bytes() <= IpcPeer::kCookieRoom) {
    return DataLoss(
        fmt::format("the pool's owner sent memory of {} and {} bytes; a pool of {} was "
                    "announced",
                    pool.bytes(), scratch.bytes(), received.reply.pool_bytes));
  }
  Hash128 cookie;
  AISP_RETURN_IF_ERROR(CopyNow(device, &cookie, scratch.data(), sizeof(cookie)));
  if (cookie != granted.cookie)
    return DataLoss("the mapped memory is not the owner's: its cookie differs");
  AISP_ASSIGN_OR_RETURN(auto stream, device.CreateStream());
  std::vector<std::unique_ptr<Event>> events(IpcPeer::kDepth);
  for (auto& event : events) {
    AISP_ASSIGN_OR_RETURN(event, device.CreateEvent());
  }
  std::optional<NoteBox> notes;
  if (granted.received.notes) {
    AISP_ASSIGN_OR_RETURN(NoteBox box, NoteBox::Open(std::move(granted.received.notes)));
    notes.emplace(std::move(box));
  }
  return std::make_shared<IpcPeer>(device, std::move(granted.socket), received.reply.token,
                                   std::move(pool), std::move(scratch), std::move(stream),
                                   std::move(events), std::move(notes));
}

}  // namespace aisp
