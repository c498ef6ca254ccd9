#include "kvcache/ucx/owner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <tuple>
#include <utility>

#include "kvcache/transport/cookie.h"
#include "kvcache/ucx/address.h"

namespace aisp::ucx {
namespace {

constexpr Duration kHelloLimit = std::chrono::seconds(2);
constexpr size_t kMaxStrangers = 64;

}  // namespace

// One rendezvous receive, until its callback.
struct Owner::Fetch {
  Owner* owner = nullptr;
  std::shared_ptr<Connection> from;
  Piece piece;
  bool probe = false;
  std::byte* target = nullptr;
  void* data = nullptr;          // UCX's handle of the payload, until its receive starts
  std::optional<uint64_t> room;  // of the ring
};

Owner::Owner(Worker* worker, const KvRegion& region, const Options& options)
    : worker_(worker),
      region_(region),
      options_(options),
      cookie_(NewCookie()),
      waste_(kMostBatchBytes) {
  if (region.device != nullptr) ring_.emplace(region);
}

Owner::~Owner() {
  if (listener_ != nullptr) ucp_listener_destroy(listener_);
}

Result<uint16_t> Owner::Listen(const std::string& address, uint16_t port) {
  AISP_ASSIGN_OR_RETURN(SocketAddress socket, ParseAddress(address, port));
  ucp_listener_params_t params{};
  params.field_mask = UCP_LISTENER_PARAM_FIELD_SOCK_ADDR | UCP_LISTENER_PARAM_FIELD_CONN_HANDLER;
  params.sockaddr = socket.ucs();
  params.conn_handler = {&Owner::OnConnection, this};
  ucs_status_t status = ucp_listener_create(worker_->get(), &params, &listener_);
  if (status != UCS_OK) {
    return tl::unexpected(UcxError(fmt::format("listening at {} port {}", address, port), status));
  }
  ucp_listener_attr_t attributes{};
  attributes.field_mask = UCP_LISTENER_ATTR_FIELD_SOCKADDR;
  status = ucp_listener_query(listener_, &attributes);
  if (status != UCS_OK) return tl::unexpected(UcxError("asking for the port", status));
  return PortOf(attributes.sockaddr);
}

void Owner::OnConnection(ucp_conn_request_h request, void* self) {
  auto* owner = static_cast<Owner*>(self);
  owner->MakeRoomForAStranger();
  // Connections marked for closing are still counted.
  if (owner->connections_.size() >= owner->options_.max_writers + 2 * kMaxStrangers) {
    static_cast<void>(ucp_listener_reject(owner->listener_, request));
    return;
  }
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_CONN_REQUEST | UCP_EP_PARAM_FIELD_ERR_HANDLER |
                      UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.conn_request = request;
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {[](void* arg, ucp_ep_h endpoint, ucs_status_t) {
                          static_cast<Owner*>(arg)->OnBroken(endpoint);
                        },
                        owner};
  ucp_ep_h endpoint = nullptr;
  if (ucp_ep_create(owner->worker_->get(), &params, &endpoint) != UCS_OK) return;
  auto connection = std::make_shared<Connection>();
  connection->endpoint = endpoint;
  // Closed unless it greets in time.
  connection->deadline = owner->clock_.Now() + std::min(kHelloLimit, owner->options_.stall_timeout);
  owner->connections_.insert_or_assign(endpoint, std::move(connection));
}

size_t Owner::Writers() const {
  return static_cast<size_t>(std::ranges::count_if(connections_, [](const auto& entry) {
    return entry.second->greeted && !entry.second->broken;
  }));
}

void Owner::MakeRoomForAStranger() {
  size_t strangers = 0;
  Connection* oldest = nullptr;
  for (const auto& [endpoint, connection] : connections_) {
    if (connection->greeted || connection->broken) continue;
    ++strangers;
    if (oldest == nullptr || connection->deadline < oldest->deadline) oldest = connection.get();
  }
  if (strangers >= kMaxStrangers) oldest->broken = true;
}

std::shared_ptr<Owner::Connection> Owner::Find(ucp_ep_h endpoint) {
  const auto it = connections_.find(endpoint);
  return it == connections_.end() || it->second->broken ? nullptr : it->second;
}

void Owner::OnBroken(ucp_ep_h endpoint) {
  if (const auto connection = Find(endpoint)) connection->broken = true;
}

void Owner::OnHello(ucp_ep_h from, const void* header, size_t bytes) {
  const std::shared_ptr<Connection> connection = Find(from);
  if (connection == nullptr) return;
  // A connection greets once; a second reply could differ.
  if (connection->greeted) {
    connection->broken = true;
    return;
  }
  Hello hello;
  const bool ours = Read(header, bytes, &hello) && hello.magic == kMagic;
  HelloReply reply{.features = options_.map_memory ? kTakesMemory : 0U,
                   .pool_bytes = region_.bytes};
  if (!ours || hello.cookie != cookie_) {
    reply.code = static_cast<uint32_t>(Code::kPermissionDenied);
    reply.pool_bytes = 0;
  } else if (Writers() >= options_.max_writers) {
    reply.code = static_cast<uint32_t>(Code::kResourceExhausted);
    reply.pool_bytes = 0;
  }
  // A refused writer leaves by itself, or when its greeting time is over.
  connection->greeted = reply.code == 0;
  if (connection->greeted) connection->deadline = kNever;
  if (!Send(from, kHelloReply, reply)) connection->broken = true;
}

// ---- Pieces ----

bool Owner::Admit(Connection& connection, const Piece& piece, size_t bytes) {
  if (!connection.greeted || piece.bytes != bytes || bytes == 0 || bytes > kMostPieceBytes)
    return false;
  if (piece.pieces == 0 || piece.pieces > kMostPieces) return false;
  if (connection.fetching >= kMostPiecesUnderWay) return false;
  const auto [write, first] = connection.writes.try_emplace(piece.write);
  if (first) write->second = {.unbegun = piece.pieces, .pieces = piece.pieces};
  // The write ends with its last announced piece; another would match no open write.
  if (write->second.unbegun == 0) return false;
  --write->second.unbegun;
  // A writer has at most as many open writes as pieces in flight, plus the one it begins.
  return connection.writes.size() <= kMostPiecesUnderWay;
}

ucs_status_t Owner::OnPiece(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                            size_t bytes, bool rendezvous) {
  const std::shared_ptr<Connection> connection = Find(from);
  if (connection == nullptr) return UCS_ERR_CANCELED;
  auto fetch = std::make_unique<Fetch>();
  fetch->owner = this;
  fetch->from = connection;
  Piece& piece = fetch->piece;
  if (!rendezvous || !Read(header, header_bytes, &piece) || !Admit(*connection, piece, bytes)) {
    connection->broken = true;
    return UCS_ERR_INVALID_PARAM;
  }
  {
    std::lock_guard lock(mutex_);
    const Status allowed = gate_.Check(Epoch(piece.epoch), piece.offset, piece.bytes);
    if (!allowed) {
      PieceEnded(*connection, piece, allowed.error().code);
      return UCS_OK;  // dropped
    }
    ++under_way_[Epoch(piece.epoch)];
  }
  Count(*fetch);
  fetch->target = region_.base + piece.offset;
  fetch->data = data;
  if (!ring_) return Start(std::move(fetch));
  waiting_.push_back(std::move(fetch));  // Serve starts it
  return UCS_INPROGRESS;
}

ucs_status_t Owner::OnProbe(ucp_ep_h from, const void* header, size_t header_bytes, void* data,
                            size_t bytes, bool rendezvous) {
  const std::shared_ptr<Connection> connection = Find(from);
  if (connection == nullptr) return UCS_ERR_CANCELED;
  Probe probe;
  if (!rendezvous || !Read(header, header_bytes, &probe) || !connection->greeted ||
      bytes != probe.bytes || bytes > waste_.size() || connection->fetching > 0) {
    connection->broken = true;
    return UCS_ERR_INVALID_PARAM;
  }
  auto fetch = std::make_unique<Fetch>();
  fetch->owner = this;
  fetch->from = connection;
  fetch->probe = true;
  fetch->piece.bytes = bytes;
  fetch->target = waste_.data();
  fetch->data = data;
  Count(*fetch);
  return Start(std::move(fetch));
}

void Owner::Count(const Fetch& fetch) {
  ++fetching_;
  ++fetch.from->fetching;
  fetch.from->deadline = clock_.Now() + options_.stall_timeout;
}

ucs_status_t Owner::Start(std::unique_ptr<Fetch> fetch) {
  ucp_request_param_t param{};
  param.op_attr_mask =
      UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = fetch.get();
  param.cb.recv_am = [](void* request, ucs_status_t status, size_t, void* arg) {
    std::unique_ptr<Fetch> ended(static_cast<Fetch*>(arg));
    ucp_request_free(request);
    Owner* owner = ended->owner;
    owner->Ended(std::move(ended), status);
  };
  ucs_status_ptr_t request =
      ucp_am_recv_data_nbx(worker_->get(), fetch->data, fetch->target, fetch->piece.bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    std::ignore = fetch.release();  // owned by the callback
    return UCS_INPROGRESS;
  }
  Ended(std::move(fetch), UCS_PTR_STATUS(request));
  return UCS_OK;
}

void Owner::StartWaiting() {
  while (!waiting_.empty()) {
    Fetch& next = *waiting_.front();
    Code refused = next.from->broken ? Code::kUnavailable : Code::kOk;
    {
      std::lock_guard lock(mutex_);
      if (!gate_.Knows(Epoch(next.piece.epoch))) refused = Code::kFailedPrecondition;
    }
    if (refused == Code::kOk) {
      const Result<std::optional<uint64_t>> room = ring_->Take(next.piece.bytes);
      if (room && !*room) return;
      if (room) next.room = *room;
      if (!room) refused = room.error().code;
    }
    std::unique_ptr<Fetch> fetch = std::move(waiting_.front());
    waiting_.pop_front();
    if (refused != Code::kOk) {
      ucp_am_data_release(worker_->get(), fetch->data);
      Settle(*fetch, refused);
      continue;
    }
    fetch->target = ring_->data(*fetch->room);
    static_cast<void>(Start(std::move(fetch)));
  }
}

void Owner::Store(std::unique_ptr<Fetch> fetch) {
  if (ring_->ToPool(*fetch->room, fetch->piece.offset)) {
    storing_.push_back(std::move(fetch));
  } else {
    Settle(*fetch, Code::kUnavailable);
  }
}

void Owner::EndStored() {
  while (!storing_.empty()) {
    const Result<bool> copied = ring_->Copied(*storing_.front()->room);
    if (copied && !*copied) return;
    const std::unique_ptr<Fetch> fetch = std::move(storing_.front());
    storing_.pop_front();
    Settle(*fetch, copied ? Code::kOk : Code::kUnavailable);
  }
}

Code Owner::Verdict(const Fetch& fetch, ucs_status_t status) {
  if (status != UCS_OK) return Code::kUnavailable;
  if (fetch.piece.checksummed == 0) return Code::kOk;
  const std::string_view landed(reinterpret_cast<const char*>(fetch.target), fetch.piece.bytes);
  return Hash64(landed) == fetch.piece.checksum ? Code::kOk : Code::kDataLoss;
}

void Owner::Ended(std::unique_ptr<Fetch> fetch, ucs_status_t status) {
  const Code code = Verdict(*fetch, status);
  if (fetch->room && code == Code::kOk && !fetch->from->broken) return Store(std::move(fetch));
  Settle(*fetch, code);
}

void Owner::Settle(const Fetch& fetch, Code code) {
  --fetching_;
  if (fetch.room) ring_->GiveBack(*fetch.room);
  const Piece& piece = fetch.piece;
  if (!fetch.probe) {
    // After the checksum: from here on the blocks may be reassigned.
    std::lock_guard lock(mutex_);
    const auto it = under_way_.find(Epoch(piece.epoch));
    if (--it->second == 0) under_way_.erase(it);
  }
  Connection& connection = *fetch.from;
  --connection.fetching;
  if (connection.broken) return;
  connection.deadline = connection.fetching == 0 ? kNever : clock_.Now() + options_.stall_timeout;
  if (!fetch.probe) {
    PieceEnded(connection, piece, code);
  } else if (!Send(connection.endpoint, kProbeReply, ProbeReply{piece.bytes})) {
    connection.broken = true;
  }
}

void Owner::PieceEnded(Connection& connection, const Piece& piece, Code code) {
  const auto it = connection.writes.find(piece.write);
  OpenWrite& write = it->second;
  if (write.code == Code::kOk) write.code = code;
  if (--write.pieces > 0) return;
  const Ack ack{.write = piece.write, .code = static_cast<uint32_t>(write.code)};
  connection.writes.erase(it);
  if (!Send(connection.endpoint, kAck, ack)) connection.broken = true;
}

// ---- Memory of this host ----

void Owner::OnMemory(ucp_ep_h from, const void* header, size_t bytes) {
  const std::shared_ptr<Connection> connection = Find(from);
  if (connection == nullptr) return;
  Memory memory;
  if (!Read(header, bytes, &memory) || !connection->greeted || connection->asked ||
      !options_.map_memory) {
    connection->broken = true;
    return;
  }
  connection->asked = true;
  if (mapper_ == nullptr) mapper_ = std::make_unique<MemoryMapper>();
  mapper_->Map(memory, [post = options_.post, connection](MemoryMapper::Mapped mapped) {
    post([connection, mapped = std::move(mapped)] {
      if (connection->broken) return;
      MemoryReply reply;
      if (mapped) {
        connection->memory = *mapped;
      } else {
        reply.code = static_cast<uint32_t>(mapped.error().code);
      }
      if (!Send(connection->endpoint, kMemoryReply, reply)) connection->broken = true;
    });
  });
}

std::vector<Range> Owner::Unpack(const Connection& connection, const Batch& batch, const void* data,
                                 size_t bytes) {
  if (connection.memory == nullptr || batch.count == 0 || batch.count > kMostRanges ||
      bytes != batch.count * sizeof(Range))
    return {};
  std::vector<Range> ranges(batch.count);
  std::memcpy(ranges.data(), data, bytes);
  const uint64_t pool = connection.memory->bytes().size();
  uint64_t total = 0;
  for (const Range& range : ranges) {
    if (range.bytes == 0 || range.bytes > kMostBatchBytes || range.source > pool ||
        range.bytes > pool - range.source)
      return {};
    total += range.bytes;
  }
  if (total > kMostBatchBytes || (batch.probe != 0 && batch.count != 1)) return {};
  return ranges;
}

void Owner::OnBatch(ucp_ep_h from, const void* header, size_t header_bytes, const void* data,
                    size_t bytes, bool rendezvous) {
  const std::shared_ptr<Connection> connection = Find(from);
  if (connection == nullptr) return;
  Batch batch;
  std::vector<Range> ranges;
  if (!rendezvous && Read(header, header_bytes, &batch))
    ranges = Unpack(*connection, batch, data, bytes);
  if (ranges.empty()) {
    connection->broken = true;
    return;
  }
  Landed landed{.write = batch.write, .count = batch.count};
  for (const Range& range : ranges) {
    const Code code = CopyRange(*connection->memory, range, batch);
    if (landed.code == 0) landed.code = static_cast<uint32_t>(code);
  }
  if (!Send(connection->endpoint, kLanded, landed)) connection->broken = true;
}

Code Owner::CopyRange(const PoolMapping& from, const Range& range, const Batch& batch) {
  const std::byte* source = from.bytes().data() + range.source;
  if (batch.probe != 0) {
    std::memcpy(waste_.data(), source, range.bytes);
    return Code::kOk;
  }
  const Epoch epoch(batch.epoch);
  {
    std::lock_guard lock(mutex_);
    const Status allowed = gate_.Check(epoch, range.offset, range.bytes);
    if (!allowed) return allowed.error().code;
    ++under_way_[epoch];
  }
  std::byte* target = region_.base + range.offset;
  std::memcpy(target, source, range.bytes);
  const bool good = batch.checksummed == 0 ||
                    Hash64({reinterpret_cast<const char*>(target), range.bytes}) == range.checksum;
  std::lock_guard lock(mutex_);
  const auto it = under_way_.find(epoch);
  if (--it->second == 0) under_way_.erase(it);
  return good ? Code::kOk : Code::kDataLoss;
}

// ---- Epochs ----

void Owner::Allow(Epoch epoch, std::span<const BlockCopy> allowed) {
  std::lock_guard lock(mutex_);
  gate_.Allow(epoch, allowed);
}

bool Owner::Revoke(Epoch epoch) {
  std::lock_guard lock(mutex_);
  gate_.Revoke(epoch);
  return !under_way_.contains(epoch);
}

// ---- Closing ----

void Owner::Serve() {
  const Instant now = clock_.Now();
  EndStored();
  StartWaiting();
  std::erase_if(connections_, [&](auto& entry) {
    Connection& connection = *entry.second;
    if (!connection.broken && now < connection.deadline) return false;
    connection.broken = true;
    worker_->Close(connection.endpoint);
    return true;
  });
}

Instant Owner::deadline() const {
  Instant first = kNever;
  for (const auto& [endpoint, connection] : connections_)
    first = std::min(first, connection->broken ? Instant() : connection->deadline);
  return first;
}

void Owner::CloseAll() {
  mapper_.reset();
  if (listener_ != nullptr) ucp_listener_destroy(std::exchange(listener_, nullptr));
  for (const auto& [endpoint, connection] : connections_) connection->broken = true;
  Serve();
}

}  // namespace aisp::ucx
