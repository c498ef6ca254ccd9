#include "kvcache/transport/shm.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cstring>
#include <utility>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/pool_listener.h"
#include "kvcache/transport/pool_socket.h"

namespace aisp {
namespace {

constexpr const char* kLane = "shm1";
constexpr size_t kScratchBytes = 1 << 20;

class ShmPeer final : public MemoryTransport::Peer {
 public:
  ShmPeer(UniqueFd socket, const Hash128& token, PoolMapping pool, PoolMapping scratch)
      : socket_(std::move(socket)),
        token_(token.ToHex()),
        pool_(std::move(pool)),
        scratch_(std::move(scratch)) {}

  uint64_t bytes() const override { return pool_.bytes().size(); }

  Status Copy(const std::byte* source, std::span<const BlockCopy> copies, Epoch) override {
    for (const BlockCopy& copy : copies) {
      std::memcpy(pool_.bytes().data() + copy.dst_offset, source + copy.src_offset, copy.bytes);
    }
    // If the owner is gone, nobody receives the bytes.
    return Alive();
  }

  Status Alive() override { return OwnerAlive(socket_.get()); }
  std::string token() const override { return token_; }

  Result<double> Measure(Duration limit) override {
    return MeasureMemcpy(scratch_.bytes().subspan(4096), limit);  // after the cookie
  }

 private:
  const UniqueFd socket_;  // closes last: the owner takes that as the end of the mapping
  const std::string token_;
  const PoolMapping pool_;
  const PoolMapping scratch_;
};

Result<UniqueFd> MakeScratch(const Hash128& cookie) {
  UniqueFd fd(memfd_create("aisp-kv-scratch", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd || ftruncate(fd.get(), kScratchBytes) != 0 ||
      pwrite(fd.get(), &cookie, sizeof(cookie), 0) != static_cast<ssize_t>(sizeof(cookie))) {
    return tl::unexpected(SocketError("making a scratch memfd"));
  }
  AISP_RETURN_IF_ERROR(SealPool(fd.get()));
  return fd;
}

// A private mapping would look like the pool but never show what writers write.
Status CheckSharedMapping(const KvRegion& region) {
  AISP_ASSIGN_OR_RETURN(const PoolMapping mapped,
                        PoolMapping::Map(region.handle, region.bytes, MappingAccess::kReadWrite));
  volatile std::byte& here = *region.base;
  volatile const std::byte& there = mapped.bytes()[0];
  const std::byte before = here;
  here = ~before;
  const bool shared = there == ~before;
  here = before;
  if (!shared)
    return InvalidArgument("the pool is not a shared mapping of its handle from offset 0");
  return {};
}

}  // namespace

ShmTransport::ShmTransport(const Options& options)
    : MemoryTransport({.name = "shm",
                       .crosses_process = true,
                       .crosses_host = false,
                       .owner_copies = false,
                       .rank = 80},
                      options.max_writes),
      options_(options) {}

ShmTransport::~ShmTransport() { StopWriting(); }

Status ShmTransport::Register(const KvRegion& region) {
  if (region.device != nullptr) {
    return FailedPrecondition("the lane shm cannot reach a GPU's memory; cuda_ipc can");
  }
  if (region.handle < 0)
    return InvalidArgument("the shm transport needs a pool in a memfd; this one has no handle");
  if (region.base == nullptr || region.bytes == 0)
    return InvalidArgument("the pool to register is empty");
  AISP_RETURN_IF_ERROR(CheckSharedMapping(region));
  return MemoryTransport::Register(region);
}

Result<std::string> ShmTransport::Descriptor() {
  if (region().base == nullptr) return FailedPrecondition("register a pool before offering it");
  if (listener_ == nullptr) {
    PoolOffer offer;
    offer.lane = kLane;
    offer.cookie = NewCookie();
    AISP_ASSIGN_OR_RETURN(scratch_, MakeScratch(offer.cookie));
    offer.reply.pool_bytes = region().bytes;
    offer.pool_fd = region().handle;
    offer.scratch_fd = scratch_.get();
    AISP_ASSIGN_OR_RETURN(listener_, PoolListener::Start(offer, options_.max_writers));
  }
  return listener_->descriptor();
}

Result<PeerWatch> ShmTransport::WatchWriter(std::string_view token) {
  if (listener_ == nullptr)
    return NotFound("this pool is not offered, so nobody is connected to it");
  return listener_->WatchWriter(token);
}

Result<std::shared_ptr<MemoryTransport::Peer>> ShmTransport::Open(std::string_view descriptor,
                                                                  Duration timeout) {
  AISP_ASSIGN_OR_RETURN(GrantedPool granted, AskForPool(kLane, descriptor, timeout));
  const ReceivedReply& received = granted.received;
  if (!received.pool || !received.scratch) return DataLoss("the pool's owner sent no memory");
  AISP_RETURN_IF_ERROR(CheckSealed(received.pool));
  AISP_RETURN_IF_ERROR(CheckSealed(received.scratch));
  AISP_ASSIGN_OR_RETURN(
      PoolMapping pool,
      PoolMapping::Map(received.pool.get(), received.reply.pool_bytes, MappingAccess::kReadWrite));
  AISP_ASSIGN_OR_RETURN(PoolMapping scratch, PoolMapping::Map(received.scratch.get(), kScratchBytes,
                                                              MappingAccess::kReadWrite));
  if (std::memcmp(scratch.bytes().data(), &granted.cookie, sizeof(granted.cookie)) != 0) {
    return DataLoss("the mapped memory is not the owner's: its cookie differs");
  }
  return std::make_shared<ShmPeer>(std::move(granted.socket), received.reply.token, std::move(pool),
                                   std::move(scratch));
}

Result<SharedPool> SharedPool::Create(size_t bytes) {
  UniqueFd fd(memfd_create("aisp-kv-pool", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd) return tl::unexpected(SocketError("memfd_create"));
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0) {
    return tl::unexpected(SocketError(fmt::format("making a memfd of {} bytes", bytes)));
  }
  AISP_RETURN_IF_ERROR(SealPool(fd.get()));
  AISP_ASSIGN_OR_RETURN(PoolMapping mapping,
                        PoolMapping::Map(fd.get(), bytes, MappingAccess::kReadWrite));
  return SharedPool(std::move(fd), std::move(mapping));
}

}  // namespace aisp
