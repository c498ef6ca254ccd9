#include "kvcache/ucx/transport.h"

#include <fmt/format.h>
#include <poll.h>

#include <algorithm>
#include <condition_variable>
#include <optional>
#include <utility>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"

namespace aisp::ucx {
namespace {

// The next layer's write follows soon, and a wake costs more than fetching a block.
constexpr Duration kSpin = std::chrono::microseconds(20);
// Limit for closing connections when this transport ends.
constexpr Duration kShutTime = std::chrono::seconds(5);
// Interval of polling UCX without a wake, while there are connections, for its timed work
// (keep-alive).
constexpr int kIdleMs = 500;
// The same while connections are closing.
constexpr int kClosingMs = 5;

struct Endpoint {
  SocketAddress address;
  Hash128 cookie;
};

Result<Endpoint> ParseDescriptor(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, ' ');
  if (parts.size() != 4 || parts[0] != "ucx1")
    return InvalidArgument("not a ucx descriptor: '" + Excerpt(text) + "'");
  AISP_ASSIGN_OR_RETURN(const int64_t port, ParseIntInRange(parts[2], 1, 65535));
  AISP_ASSIGN_OR_RETURN(const Hash128 cookie, ParseCookie(parts[3]));
  AISP_ASSIGN_OR_RETURN(const SocketAddress address,
                        ParseAddress(std::string(parts[1]), static_cast<uint16_t>(port)));
  return Endpoint{address, cookie};
}

using Param = ucp_am_recv_param_t;

ucp_ep_h From(const Param* param) {
  return (param->recv_attr & UCP_AM_RECV_ATTR_FIELD_REPLY_EP) != 0 ? param->reply_ep : nullptr;
}

bool Rendezvous(const Param* param) { return (param->recv_attr & UCP_AM_RECV_ATTR_FLAG_RNDV) != 0; }

// Waits for one value from the transport's thread, up to a limit.
template <typename T>
class Answer {
 public:
  void Set(T value) {
    std::lock_guard lock(mutex_);
    value_.emplace(std::move(value));
    there_.notify_one();
  }
  std::optional<T> Wait(Duration timeout) {
    std::unique_lock lock(mutex_);
    there_.wait_for(lock, timeout, [this] { return value_.has_value(); });
    return std::move(value_);
  }

 private:
  std::mutex mutex_;
  std::condition_variable there_;
  std::optional<T> value_;
};

}  // namespace

Result<std::unique_ptr<KvTransport>> UcxTransport::Open(const UcxOptions& options) {
  AISP_ASSIGN_OR_RETURN(std::unique_ptr<Worker> worker, Worker::Open());
  AISP_ASSIGN_OR_RETURN(Waker waker, Waker::Create());
  return std::unique_ptr<KvTransport>(
      new UcxTransport(options, std::move(worker), std::move(waker)));
}

UcxTransport::UcxTransport(const UcxOptions& options, std::unique_ptr<Worker> worker, Waker waker)
    : capabilities_{.name = "ucx",
                    .crosses_process = true,
                    .crosses_host = true,
                    .owner_copies = true,
                    .rank = 40},
      options_(options),
      worker_(std::move(worker)),
      waker_(std::move(waker)),
      completions_(options.max_writes) {}

UcxTransport::~UcxTransport() {
  stop_ = true;
  waker_.Wake();
  if (thread_.joinable()) thread_.Join();
}

Status UcxTransport::Register(const KvRegion& region) {
  if (region_.base != nullptr)
    return FailedPrecondition("a pool is already registered with this transport");
  if (region.base == nullptr || region.bytes == 0)
    return InvalidArgument("the pool to register is empty");
  region_ = region;
  const bool map_memory = options_.map_memory && region.device == nullptr;
  owner_ = std::make_unique<Owner>(
      worker_.get(), region,
      Owner::Options{.stall_timeout = options_.stall_timeout,
                     .max_writers = options_.max_writers,
                     .map_memory = map_memory,
                     .post = [this](std::function<void()> what) { Post(std::move(what)); }});
  if (map_memory && region.handle >= 0) {
    AISP_ASSIGN_OR_RETURN(memory_, MemoryOffer::Open(region, options_.max_writers));
  }
  writer_ = std::make_unique<Writer>(worker_.get(), region, &completions_,
                                     Writer::Options{.stall_timeout = options_.stall_timeout,
                                                     .checksum = options_.checksum,
                                                     .memory = memory_.get()});
  SetHandlers();
  thread_ = Thread("kv-ucx", [this] { Run(); });
  return {};
}

void UcxTransport::SetHandler(MessageId id, ucp_am_recv_callback_t handler) {
  ucp_am_handler_param_t param{};
  param.field_mask = UCP_AM_HANDLER_PARAM_FIELD_ID | UCP_AM_HANDLER_PARAM_FIELD_FLAGS |
                     UCP_AM_HANDLER_PARAM_FIELD_CB | UCP_AM_HANDLER_PARAM_FIELD_ARG;
  param.id = id;
  param.flags = UCP_AM_FLAG_WHOLE_MSG;
  param.cb = handler;
  param.arg = this;
  static_cast<void>(ucp_worker_set_am_recv_handler(worker_->get(), &param));
}

void UcxTransport::SetHandlers() {
  SetOwnersHandlers();
  SetWritersHandlers();
}

void UcxTransport::SetOwnersHandlers() {
  SetHandler(kHello,
             [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
               static_cast<UcxTransport*>(self)->owner_->OnHello(From(param), header, n);
               return UCS_OK;
             });
  SetHandler(kPiece, [](void* self, const void* header, size_t n, void* data, size_t bytes,
                        const Param* param) {
    return static_cast<UcxTransport*>(self)->owner_->OnPiece(From(param), header, n, data, bytes,
                                                             Rendezvous(param));
  });
  SetHandler(kProbe, [](void* self, const void* header, size_t n, void* data, size_t bytes,
                        const Param* param) {
    return static_cast<UcxTransport*>(self)->owner_->OnProbe(From(param), header, n, data, bytes,
                                                             Rendezvous(param));
  });
  SetHandler(kMemory,
             [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
               static_cast<UcxTransport*>(self)->owner_->OnMemory(From(param), header, n);
               return UCS_OK;
             });
  SetHandler(kBatch, [](void* self, const void* header, size_t n, void* data, size_t bytes,
                        const Param* param) {
    static_cast<UcxTransport*>(self)->owner_->OnBatch(From(param), header, n, data, bytes,
                                                      Rendezvous(param));
    return UCS_OK;
  });
}

void UcxTransport::SetWritersHandlers() {
  SetHandler(kHelloReply,
             [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
               static_cast<UcxTransport*>(self)->writer_->OnHelloReply(From(param), header, n);
               return UCS_OK;
             });
  SetHandler(kAck, [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
    static_cast<UcxTransport*>(self)->writer_->OnAck(From(param), header, n);
    return UCS_OK;
  });
  SetHandler(kProbeReply, [](void* self, const void*, size_t, void*, size_t, const Param* param) {
    static_cast<UcxTransport*>(self)->writer_->OnProbeReply(From(param));
    return UCS_OK;
  });
  SetHandler(kMemoryReply,
             [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
               static_cast<UcxTransport*>(self)->writer_->OnMemoryReply(From(param), header, n);
               return UCS_OK;
             });
  SetHandler(kLanded,
             [](void* self, const void* header, size_t n, void*, size_t, const Param* param) {
               static_cast<UcxTransport*>(self)->writer_->OnLanded(From(param), header, n);
               return UCS_OK;
             });
}

Result<std::string> UcxTransport::Descriptor() {
  if (region_.base == nullptr) return FailedPrecondition("register a pool before offering it");
  if (!descriptor_.empty()) return descriptor_;
  const std::string address =
      options_.advertise_address.empty() ? options_.bind_address : options_.advertise_address;
  if (address == "0.0.0.0" || address == "::") {
    return InvalidArgument(
        fmt::format("peers cannot connect to {}; set the address to advertise", address));
  }
  Result<uint16_t> port = Internal("the transport's thread did not answer");
  Call([&] { port = owner_->Listen(options_.bind_address, options_.port); });
  AISP_RETURN_IF_ERROR(port);
  descriptor_ = fmt::format("ucx1 {} {} {}", address, *port, owner_->cookie().ToHex());
  return descriptor_;
}

// ---- The writer's side ----

class UcxTransport::ReachedPool final : public KvTransport::Reached {
 public:
  ReachedPool(UcxTransport* transport, Writer::PeerPtr handle, uint64_t pool)
      : pool_bytes(pool), transport_(transport), peer_(std::move(handle)) {}
  ~ReachedPool() override {
    if (peer_ != nullptr) transport_->Forget(std::move(peer_));
  }

  Result<double> Measure(Duration timeout) override {
    const Instant deadline = transport_->clock_.Now() + timeout;
    Duration best = Duration::max();
    // The first rounds fault pages in and open windows.
    for (int round = 0; round < 4; ++round) {
      const Instant start = transport_->clock_.Now();
      const auto answer = std::make_shared<Answer<Status>>();
      transport_->Post([writer = transport_->writer_.get(), peer = peer_, answer] {
        writer->Measure(peer, kMostProbeBytes, [answer](Status s) { answer->Set(std::move(s)); });
      });
      const std::optional<Status> done = answer->Wait(deadline - start);
      if (!done) return Unavailable("the pool's owner did not answer a measurement in time");
      AISP_RETURN_IF_ERROR(*done);
      best = std::min(best, std::max(transport_->clock_.Now() - start, Duration(1)));
    }
    return static_cast<double>(kMostProbeBytes) / ToSeconds(best);
  }
  Writer::PeerPtr Take() { return std::move(peer_); }

  const uint64_t pool_bytes;

 private:
  UcxTransport* const transport_;
  Writer::PeerPtr peer_;
};

void UcxTransport::Forget(Writer::PeerPtr peer) {
  Post([this, peer = std::move(peer)] {
    writer_->Remove(peer, Error{Code::kUnavailable, "the peer is not wanted"}, nullptr);
  });
}

Result<std::unique_ptr<KvTransport::Reached>> UcxTransport::Reach(std::string_view descriptor,
                                                                  Duration timeout) {
  if (region_.base == nullptr)
    return FailedPrecondition("register a pool before connecting: writes come from it");
  AISP_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseDescriptor(descriptor));
  const auto answer = std::make_shared<Answer<Result<uint64_t>>>();
  const auto peer = std::make_shared<Writer::PeerPtr>();
  Post([this, endpoint, answer, peer] {
    *peer = writer_->Connect(endpoint.address, endpoint.cookie,
                             [answer](Result<uint64_t> pool) { answer->Set(std::move(pool)); });
  });
  std::optional<Result<uint64_t>> pool = answer->Wait(timeout);
  if (!pool) pool = Unavailable("the pool's owner did not answer in time");
  if (*pool) return std::make_unique<ReachedPool>(this, *peer, **pool);
  // Posted after Connect, so the peer exists by then.
  Post([this, peer] {
    writer_->Remove(*peer, Error{Code::kUnavailable, "the peer is not wanted"}, nullptr);
  });
  return tl::unexpected(pool->error());
}

KvPeerId UcxTransport::Add(std::unique_ptr<Reached> reached) {
  auto& pool = static_cast<ReachedPool&>(*reached);
  const KvPeerId peer(++last_peer_);
  const uint64_t bytes = pool.pool_bytes;
  peers_.emplace(peer, Connected{pool.Take(), bytes});
  return peer;
}

void UcxTransport::Disconnect(KvPeerId peer) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  const Writer::PeerPtr handle = std::move(it->second.handle);
  peers_.erase(it);
  const auto done = std::make_shared<Answer<bool>>();
  Post([this, handle, done] {
    writer_->Remove(
        handle, Error{Code::kUnavailable, "the peer was disconnected before this write completed"},
        [done] { done->Set(true); });
  });
  // UCX ends the work in flight of a connection that is closed by force.
  static_cast<void>(done->Wait(kShutTime));
}

Result<WriteId> UcxTransport::Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return NotFound(fmt::format("ucx peer {} is not connected", peer.value));
  AISP_RETURN_IF_ERROR(CheckCopies(copies, region_.bytes, it->second.pool_bytes));
  const uint64_t most = region_.device != nullptr ? PinnedRing::kPieceBytes : kMostPieceBytes;
  uint64_t pieces = 0;
  for (const BlockCopy& copy : copies) pieces += (copy.bytes + most - 1) / most;
  if (pieces > kMostPieces) {
    return Fail(Code::kOutOfRange,
                fmt::format("a write of {} pieces; at most {}, split it", pieces, kMostPieces));
  }
  AISP_RETURN_IF_ERROR(it->second.handle->Alive());
  AISP_ASSIGN_OR_RETURN(const WriteId id, completions_.Admit(peer));
  Post([this, handle = it->second.handle,
        job = WriteJob{id, epoch, {copies.begin(), copies.end()}}] {
    writer_->Enqueue(handle, job);
  });
  return id;
}

void UcxTransport::CancelWrites(KvPeerId peer, Epoch epoch) {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return;
  Post([this, handle = it->second.handle, epoch] { writer_->Cancel(handle, epoch); });
}

// ---- The owner's side ----

void UcxTransport::AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) {
  if (owner_ != nullptr) owner_->Allow(epoch, allowed);
}

bool UcxTransport::RevokeEpoch(Epoch epoch) { return owner_ == nullptr || owner_->Revoke(epoch); }

// ---- The thread ----

void UcxTransport::Post(std::function<void()> what) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = posted_.empty();
    posted_.push_back(std::move(what));
  }
  if (first) waker_.Wake();  // the thread takes all at once
}

void UcxTransport::Call(const std::function<void()>& what) {
  const auto done = std::make_shared<Answer<bool>>();
  Post([&what, done] {
    what();
    done->Set(true);
  });
  while (!done->Wait(kShutTime)) {
  }
}

void UcxTransport::RunPosted() {
  std::vector<std::function<void()>> posted;
  {
    std::lock_guard lock(mutex_);
    posted.swap(posted_);
  }
  for (const std::function<void()>& what : posted) what();
}

void UcxTransport::Run() {
  Instant spin_until = clock_.Now();
  while (!stop_) {
    RunPosted();
    const bool progressed = worker_->Progress();
    owner_->Serve();
    writer_->Serve();
    if (progressed) spin_until = clock_.Now() + kSpin;
    const bool copying = owner_->copying() || writer_->copying();
    if (copying || clock_.Now() < spin_until) continue;
    Sleep();
  }
  Shut();
}

void UcxTransport::Sleep() {
  {
    std::lock_guard lock(mutex_);
    if (!posted_.empty()) return;
  }
  if (!worker_->Arm()) return;
  const Instant deadline = std::min(owner_->deadline(), writer_->deadline());
  int timeout_ms = kIdleMs;
  if (worker_->closing() > 0) {
    timeout_ms = kClosingMs;
  } else if (writer_->empty() && owner_->empty() && owner_->fetching() == 0) {
    timeout_ms = -1;
  }
  if (deadline != kNever) {
    const double ms = std::clamp(ToMs(deadline - clock_.Now()), 0.0, 1.0 * kIdleMs);
    timeout_ms = std::min(timeout_ms, static_cast<int>(ms) + 1);
  }
  pollfd sets[2] = {{worker_->fd(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}};
  static_cast<void>(poll(sets, 2, timeout_ms));
  static_cast<void>(waker_.Drain());
}

void UcxTransport::Shut() {
  owner_->CloseAll();
  writer_->RemoveAll(Error{Code::kUnavailable, "the transport is closed"});
  const Instant deadline = clock_.Now() + kShutTime;
  do {
    RunPosted();
    worker_->Progress();
    owner_->Serve();
    writer_->Serve();
  } while ((!writer_->empty() || owner_->fetching() > 0 || worker_->closing() > 0) &&
           clock_.Now() < deadline);
}

}  // namespace aisp::ucx
