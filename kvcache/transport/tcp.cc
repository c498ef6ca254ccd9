#include "kvcache/transport/tcp.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/strings.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/device_stage.h"
#include "kvcache/transport/tcp_socket.h"

namespace aisp {
namespace {

constexpr size_t kProbeBytes = 1 << 20;

struct Endpoint {
  std::string address;
  uint16_t port = 0;
  Hash128 cookie;
};

Result<Endpoint> ParseDescriptor(std::string_view text) {
  const std::vector<std::string_view> parts = Split(text, ' ');
  if (parts.size() != 4 || parts[0] != "tcp1")
    return InvalidArgument("not a tcp descriptor: '" + Excerpt(text) + "'");
  AISP_ASSIGN_OR_RETURN(const int64_t port, ParseIntInRange(parts[2], 1, 65535));
  AISP_ASSIGN_OR_RETURN(const Hash128 cookie, ParseCookie(parts[3]));
  return Endpoint{std::string(parts[1]), static_cast<uint16_t>(port), cookie};
}

template <typename T>
std::span<std::byte> BytesOf(T& value) {
  return std::as_writable_bytes(std::span(&value, 1));
}

}  // namespace

TcpTransport::TcpTransport(const Options& options)
    : capabilities_{.name = "tcp",
                    .crosses_process = true,
                    .crosses_host = true,
                    .owner_copies = true,
                    .rank = 20},
      options_(options),
      completions_(options.max_writes) {}

TcpTransport::~TcpTransport() = default;

Status TcpTransport::Register(const KvRegion& region) {
  if (region_.base != nullptr)
    return FailedPrecondition("a pool is already registered with this transport");
  if (region.base == nullptr || region.bytes == 0)
    return InvalidArgument("the pool to register is empty");
  AISP_ASSIGN_OR_RETURN(writer_, TcpWriter::Start(region, &completions_,
                                                  {.stall_timeout = options_.stall_timeout,
                                                   .checksums = options_.checksums}));
  region_ = region;
  return {};
}

Result<std::string> TcpTransport::Descriptor() {
  if (region_.base == nullptr) return FailedPrecondition("register a pool before offering it");
  std::string address =
      options_.advertise_address.empty() ? options_.bind_address : options_.advertise_address;
  if (address == "0.0.0.0" || address == "::") {
    return InvalidArgument(
        fmt::format("peers cannot connect to {}; set the address to advertise", address));
  }
  if (owner_ == nullptr) {
    AISP_ASSIGN_OR_RETURN(owner_, TcpOwner::Start(region_, {.bind_address = options_.bind_address,
                                                            .port = options_.port,
                                                            .stall_timeout = options_.stall_timeout,
                                                            .max_writers = options_.max_writers}));
  }
  return fmt::format("tcp1 {} {} {}", address, owner_->port(), owner_->cookie().ToHex());
}

class TcpTransport::ReachedPool final : public KvTransport::Reached {
 public:
  ReachedPool(UniqueFd connection, const TcpHelloReply& reply)
      : socket(std::move(connection)), pool_bytes(reply.pool_bytes), takes(reply.takes) {}

  Result<double> Measure(Duration timeout) override {
    const std::vector<std::byte> bytes(kProbeBytes, std::byte{0x5a});
    const SteadyClock clock;
    const Instant deadline = clock.Now() + timeout;
    Duration best = Duration::max();
    // The congestion window opens during the first rounds.
    for (int round = 0; round < 4; ++round) {
      const Instant start = clock.Now();
      AISP_RETURN_IF_ERROR(Echo(bytes, deadline));
      best = std::min(best, std::max(clock.Now() - start, Duration(1)));
    }
    return static_cast<double>(kProbeBytes) / ToSeconds(best);
  }

  UniqueFd socket;
  const uint64_t pool_bytes;
  const uint32_t takes;

 private:
  // Sends bytes that the owner drops, and waits for its acknowledgement.
  Status Echo(std::span<const std::byte> bytes, Instant deadline) {
    TcpWriteHeader header{.flags = kTcpProbe, .payload_bytes = bytes.size()};
    AISP_RETURN_IF_ERROR(SendAll(socket.get(), BytesOf(header), deadline));
    AISP_RETURN_IF_ERROR(SendAll(socket.get(), bytes, deadline));
    TcpAck ack;
    AISP_RETURN_IF_ERROR(ReceiveAll(socket.get(), BytesOf(ack), deadline));
    if (ack.magic != kTcpAckMagic || ack.id != header.id || ack.code != 0)
      return FailedPrecondition("the pool's owner did not acknowledge a measurement");
    return {};
  }
};

Result<std::unique_ptr<KvTransport::Reached>> TcpTransport::Reach(std::string_view descriptor,
                                                                  Duration timeout) {
  if (region_.base == nullptr)
    return FailedPrecondition("register a pool before connecting: writes come from it");
  AISP_ASSIGN_OR_RETURN(const Endpoint endpoint, ParseDescriptor(descriptor));
  const Instant deadline = SteadyClock().Now() + timeout;
  AISP_ASSIGN_OR_RETURN(UniqueFd socket, ConnectTcp(endpoint.address, endpoint.port, timeout));
  TcpHello hello{.cookie = endpoint.cookie};
  AISP_RETURN_IF_ERROR(SendAll(socket.get(), BytesOf(hello), deadline));
  TcpHelloReply reply;
  AISP_RETURN_IF_ERROR(ReceiveAll(socket.get(), BytesOf(reply), deadline));
  if (reply.magic != kTcpMagic)
    return FailedPrecondition("the peer speaks another protocol or version");
  if (reply.code == static_cast<uint32_t>(Code::kResourceExhausted))
    return ResourceExhausted("the pool has as many writers as it allows");
  if (reply.code != 0) {
    return Fail(Code::kPermissionDenied,
                "the pool's owner refused the descriptor's cookie: it is another incarnation's");
  }
  return std::make_unique<ReachedPool>(std::move(socket), reply);
}

KvPeerId TcpTransport::Add(std::unique_ptr<Reached> reached) {
  auto& pool = static_cast<ReachedPool&>(*reached);
  const KvPeerId peer(++last_peer_);
  pool_bytes_.emplace(peer, pool.pool_bytes);
  writer_->Add(peer, std::move(pool.socket), pool.takes);
  return peer;
}

void TcpTransport::Disconnect(KvPeerId peer) {
  if (pool_bytes_.erase(peer) == 0) return;
  writer_->Remove(
      peer, Error{Code::kUnavailable, "the peer was disconnected before this write completed"});
}

Result<WriteId> TcpTransport::Write(KvPeerId peer, std::span<const BlockCopy> copies, Epoch epoch) {
  const auto it = pool_bytes_.find(peer);
  if (it == pool_bytes_.end())
    return NotFound(fmt::format("tcp peer {} is not connected", peer.value));
  AISP_RETURN_IF_ERROR(CheckCopies(copies, region_.bytes, it->second));
  const uint64_t most = region_.device != nullptr ? DeviceStage::kMostBytes : kTcpMaxPayload;
  uint64_t payload = 0;
  for (const BlockCopy& copy : copies) payload = std::min(payload + copy.bytes, most + 1);
  if (copies.size() > kTcpMaxCopies || payload > most) {
    return Fail(Code::kOutOfRange,
                fmt::format("a write of {} copies; at most {} copies and {} bytes, split it",
                            copies.size(), kTcpMaxCopies, most));
  }
  AISP_RETURN_IF_ERROR(writer_->Alive(peer));
  AISP_ASSIGN_OR_RETURN(const WriteId id, completions_.Admit(peer));
  writer_->Write(id, peer, epoch, copies);
  return id;
}

void TcpTransport::CancelWrites(KvPeerId peer, Epoch epoch) {
  if (pool_bytes_.contains(peer)) writer_->Cancel(peer, epoch);
}

void TcpTransport::AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) {
  if (owner_ != nullptr) owner_->Allow(epoch, allowed);
}

bool TcpTransport::RevokeEpoch(Epoch epoch) {
  if (owner_ != nullptr) owner_->Revoke(epoch);
  return true;
}

}  // namespace aisp
