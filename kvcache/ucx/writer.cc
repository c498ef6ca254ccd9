#include "kvcache/ucx/writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <span>
#include <tuple>
#include <utility>

namespace aisp::ucx {
namespace {

Error Broken(const std::string& what) {
  return {Code::kUnavailable, "the connection to the pool's owner broke: " + what};
}

// The owner maps within half of this, or not at all; connecting waits longer.
constexpr Duration kMapPatience = std::chrono::milliseconds(200);

// Splits copies into pieces that fit one message; empty copies yield none.
std::vector<BlockCopy> Split(const std::vector<BlockCopy>& copies, uint64_t most_bytes) {
  std::vector<BlockCopy> pieces;
  pieces.reserve(copies.size());
  for (BlockCopy rest : copies) {
    while (rest.bytes > 0) {
      const uint64_t bytes = std::min(rest.bytes, most_bytes);
      pieces.push_back({rest.src_offset, rest.dst_offset, bytes});
      rest = {rest.src_offset + bytes, rest.dst_offset + bytes, rest.bytes - bytes};
    }
  }
  return pieces;
}

}  // namespace

// One rendezvous payload, until its callback.
struct Writer::Sending {
  Writer* writer = nullptr;
  PeerPtr peer;
  WriteId write;  // value 0: a measurement
  Piece piece;
  Probe probe;
  std::optional<uint64_t> room;  // of the ring
};

Writer::Writer(Worker* worker, const KvRegion& source, CompletionQueue* completions,
               const Options& options)
    : worker_(worker), source_(source), completions_(completions), options_(options) {
  if (source.device != nullptr) ring_.emplace(source);
}

Writer::~Writer() = default;

Writer::PeerPtr Writer::Find(ucp_ep_h endpoint) const {
  const auto it = std::ranges::find_if(
      peers_, [endpoint](const PeerPtr& peer) { return peer->endpoint == endpoint; });
  return it == peers_.end() ? nullptr : *it;
}

void Writer::Moved(Peer& peer) const {
  const bool waits = peer.under_way > 0 || !peer.entries.empty() || peer.measured != nullptr;
  peer.deadline = waits ? clock_.Now() + options_.stall_timeout : kNever;
}

// ---- Connections ----

Writer::PeerPtr Writer::Connect(const SocketAddress& address, const Hash128& cookie,
                                std::function<void(Result<uint64_t>)> greeted) {
  auto peer = std::make_shared<Peer>();
  peer->greeted = std::move(greeted);
  peers_.push_back(peer);
  ucp_ep_params_t params{};
  params.field_mask = UCP_EP_PARAM_FIELD_FLAGS | UCP_EP_PARAM_FIELD_SOCK_ADDR |
                      UCP_EP_PARAM_FIELD_ERR_HANDLER | UCP_EP_PARAM_FIELD_ERR_HANDLING_MODE;
  params.flags = UCP_EP_PARAMS_FLAGS_CLIENT_SERVER;
  params.sockaddr = address.ucs();
  params.err_mode = UCP_ERR_HANDLING_MODE_PEER;
  params.err_handler = {[](void* self, ucp_ep_h endpoint, ucs_status_t status) {
                          static_cast<Writer*>(self)->OnBroken(endpoint, status);
                        },
                        this};
  const ucs_status_t status = ucp_ep_create(worker_->get(), &params, &peer->endpoint);
  if (status != UCS_OK) {
    peer->Break(UcxError("connecting", status));
  } else if (const Status sent = Send(peer->endpoint, kHello, Hello{.cookie = cookie}); !sent) {
    peer->Break(sent.error());
  }
  return peer;
}

void Writer::OnHelloReply(ucp_ep_h from, const void* header, size_t bytes) {
  const PeerPtr peer = Find(from);
  if (peer == nullptr || peer->greeted == nullptr) return;
  HelloReply reply;
  const auto greeted = std::exchange(peer->greeted, nullptr);
  if (!Read(header, bytes, &reply) || reply.magic != kMagic) {
    greeted(FailedPrecondition("the peer speaks another protocol or version"));
  } else if (reply.code != 0) {
    greeted(Fail(Code::kPermissionDenied,
                 "the pool's owner refused the descriptor's cookie: it is another incarnation's"));
  } else if (options_.memory != nullptr && (reply.features & kTakesMemory) != 0) {
    peer->greeted = greeted;
    peer->pool_bytes = reply.pool_bytes;
    peer->map_by = clock_.Now() + kMapPatience;
    if (const Status sent = Send(from, kMemory, options_.memory->message()); !sent)
      peer->Break(sent.error());
  } else {
    greeted(reply.pool_bytes);
  }
}

void Writer::OnMemoryReply(ucp_ep_h from, const void* header, size_t bytes) {
  const PeerPtr peer = Find(from);
  // Too late: writes may be in flight that use the other path.
  if (peer == nullptr || peer->map_by == kNever) return;
  MemoryReply reply;
  peer->mapped = Read(header, bytes, &reply) && reply.code == 0;
  peer->map_by = kNever;
  if (peer->greeted != nullptr) std::exchange(peer->greeted, nullptr)(peer->pool_bytes);
}

void Writer::OnBroken(ucp_ep_h endpoint, ucs_status_t status) {
  if (const PeerPtr peer = Find(endpoint)) peer->Break(Broken(ucs_status_string(status)));
}

void Writer::Remove(const PeerPtr& peer, const Error& why, std::function<void()> done) {
  peer->Break(why);
  peer->removed = true;
  peer->done = std::move(done);
  if (std::ranges::find(peers_, peer) == peers_.end()) peers_.push_back(peer);
}

void Writer::RemoveAll(const Error& why) {
  for (const PeerPtr& peer : peers_) {
    peer->Break(why);
    peer->removed = true;
  }
}

// ---- Writes ----

void Writer::Measure(const PeerPtr& peer, uint64_t bytes, std::function<void(Status)> done) {
  peer->measured = std::move(done);
  if (!peer->Alive()) return;  // Serve reports the error
  if (peer->mapped) {
    const Range range{.bytes = std::min({bytes, kMostBatchBytes, uint64_t{source_.bytes}})};
    peer->batches.push_back({WriteId(0), 1, range.bytes});
    peer->batched_bytes += range.bytes;
    const Batch batch{.count = 1, .probe = 1};
    const Status sent = SendSmall(peer->endpoint, kBatch, &batch, sizeof(batch),
                                  std::as_bytes(std::span(&range, 1)));
    if (!sent) peer->Break(sent.error());
    Moved(*peer);
    return;
  }
  peer->probe.assign(bytes, std::byte{0x5a});
  auto sending = std::make_unique<Sending>();
  sending->peer = peer;
  sending->probe.bytes = bytes;
  ++peer->under_way;
  const Probe* header = &sending->probe;
  const Status sent =
      SendPayload(std::move(sending), kProbe, header, sizeof(Probe), peer->probe.data(), bytes);
  if (!sent) peer->Break(sent.error());
  Moved(*peer);
}

void Writer::OnProbeReply(ucp_ep_h from) {
  const PeerPtr peer = Find(from);
  if (peer == nullptr || peer->measured == nullptr) return;
  std::exchange(peer->measured, nullptr)({});
  Moved(*peer);
}

void Writer::Enqueue(const PeerPtr& peer, const WriteJob& job) {
  Entry entry;
  entry.id = job.id;
  entry.epoch = job.epoch;
  const uint64_t alone = ring_ ? PinnedRing::kPieceBytes : kMostPieceBytes;
  entry.pieces = Split(job.copies, peer->mapped ? kMostBatchBytes : alone);
  entry.over = entry.pieces.empty();
  const bool idle = peer->entries.empty();
  peer->entries.push_back(std::move(entry));
  if (idle) Moved(*peer);
}

void Writer::Cancel(const PeerPtr& peer, Epoch epoch) {
  for (Entry& entry : peer->entries) {
    if (entry.epoch != epoch || entry.offered > 0 || entry.over) continue;
    entry.over = true;
    entry.verdict = Fail(Code::kCancelled, "the epoch was cancelled before this write began");
  }
}

void Writer::Offer(const PeerPtr& peer) {
  for (Entry& entry : peer->entries) {
    while (!entry.over && entry.offered < entry.pieces.size()) {
      const bool full = peer->mapped ? peer->batched_bytes >= kBatchBytesUnderWay
                                     : peer->under_way >= kPiecesUnderWay;
      if (full) return;
      Result<bool> offered = true;
      if (!peer->mapped) {
        offered = OfferPiece(peer, entry);
      } else if (const Status sent = OfferBatch(*peer, entry); !sent) {
        offered = tl::unexpected(sent.error());
      }
      if (!offered) peer->Break(offered.error());
      if (!offered || !*offered) return;
    }
  }
}

Result<bool> Writer::OfferPiece(const PeerPtr& peer, Entry& entry) {
  const BlockCopy& copy = entry.pieces[entry.offered];
  auto sending = std::make_unique<Sending>();
  if (ring_) {
    AISP_ASSIGN_OR_RETURN(sending->room, ring_->Take(copy.bytes));
    if (!sending->room) return false;
    if (const Status begun = ring_->FromPool(*sending->room, copy.src_offset); !begun) {
      ring_->GiveBack(*sending->room);
      return tl::unexpected(begun.error());
    }
  }
  ++entry.offered;
  sending->peer = peer;
  sending->write = entry.id;
  sending->piece = {.write = entry.id.value,
                    .epoch = entry.epoch.value,
                    .offset = copy.dst_offset,
                    .bytes = copy.bytes,
                    .pieces = static_cast<uint32_t>(entry.pieces.size())};
  ++entry.under_way;
  ++peer->under_way;
  if (ring_) {
    copying_.push_back(std::move(sending));
    return true;
  }
  AISP_RETURN_IF_ERROR(SendPiece(std::move(sending), source_.base + copy.src_offset));
  return true;
}

void Writer::SendCopied() {
  while (!copying_.empty()) {
    const Result<bool> copied = ring_->Copied(*copying_.front()->room);
    if (copied && !*copied) return;
    std::unique_ptr<Sending> sending = std::move(copying_.front());
    copying_.pop_front();
    const PeerPtr peer = sending->peer;
    if (!copied) peer->Break(copied.error());
    if (!peer->Alive()) {
      Sent(*sending, UCS_ERR_CANCELED);
      continue;
    }
    const std::byte* payload = ring_->data(*sending->room);
    if (const Status sent = SendPiece(std::move(sending), payload); !sent)
      peer->Break(sent.error());
  }
}

Status Writer::SendPiece(std::unique_ptr<Sending> sending, const std::byte* payload) {
  Piece* piece = &sending->piece;
  if (options_.checksum) {
    piece->checksum = Checksum(payload, piece->bytes);
    piece->checksummed = 1;
  }
  const uint64_t bytes = piece->bytes;
  return SendPayload(std::move(sending), kPiece, piece, sizeof(Piece), payload, bytes);
}

uint64_t Writer::Checksum(const std::byte* payload, uint64_t bytes) const {
  return Hash64(std::string_view(reinterpret_cast<const char*>(payload), bytes));
}

Status Writer::OfferBatch(Peer& peer, Entry& entry) {
  std::array<Range, kMostRanges> ranges;
  Batched batched{.write = entry.id};
  while (batched.count < kMostRanges && entry.offered < entry.pieces.size()) {
    const BlockCopy& copy = entry.pieces[entry.offered];
    if (batched.bytes + copy.bytes > kMostBatchBytes) break;
    ranges[batched.count++] = {
        .source = copy.src_offset,
        .offset = copy.dst_offset,
        .bytes = copy.bytes,
        .checksum = options_.checksum ? Checksum(source_.base + copy.src_offset, copy.bytes) : 0};
    batched.bytes += copy.bytes;
    ++entry.offered;
  }
  peer.batches.push_back(batched);
  peer.batched_bytes += batched.bytes;
  const Batch batch{.write = entry.id.value,
                    .epoch = entry.epoch.value,
                    .count = batched.count,
                    .checksummed = static_cast<uint16_t>(options_.checksum ? 1 : 0)};
  return SendSmall(peer.endpoint, kBatch, &batch, sizeof(batch),
                   std::as_bytes(std::span(ranges).first(batched.count)));
}

Status Writer::SendPayload(std::unique_ptr<Sending> sending, unsigned id, const void* header,
                           size_t header_bytes, const std::byte* payload, uint64_t bytes) {
  sending->writer = this;
  ucp_request_param_t param{};
  param.op_attr_mask = UCP_OP_ATTR_FIELD_CALLBACK | UCP_OP_ATTR_FIELD_USER_DATA |
                       UCP_OP_ATTR_FIELD_FLAGS | UCP_OP_ATTR_FIELD_MEMORY_TYPE;
  param.flags = kWithReply | UCP_AM_SEND_FLAG_RNDV;
  param.memory_type = UCS_MEMORY_TYPE_HOST;
  param.user_data = sending.get();
  param.cb.send = [](void* request, ucs_status_t status, void* arg) {
    const std::unique_ptr<Sending> ended(static_cast<Sending*>(arg));
    ucp_request_free(request);
    ended->writer->Sent(*ended, status);
  };
  ucs_status_ptr_t request =
      ucp_am_send_nbx(sending->peer->endpoint, id, header, header_bytes, payload, bytes, &param);
  if (UCS_PTR_IS_PTR(request)) {
    std::ignore = sending.release();  // owned by the callback
    return {};
  }
  Sent(*sending, UCS_PTR_STATUS(request));
  return {};
}

void Writer::Sent(Sending& sending, ucs_status_t status) {
  Peer& peer = *sending.peer;
  --peer.under_way;
  if (sending.room) ring_->GiveBack(*sending.room);
  if (status != UCS_OK) peer.Break(Broken(ucs_status_string(status)));
  const auto entry = std::ranges::find(peer.entries, sending.write, &Entry::id);
  if (entry != peer.entries.end()) --entry->under_way;
  Moved(peer);
}

void Writer::OnAck(ucp_ep_h from, const void* header, size_t bytes) {
  const PeerPtr peer = Find(from);
  if (peer == nullptr) return;
  Ack ack;
  if (!Read(header, bytes, &ack)) {
    peer->Break(Broken("it sent an acknowledgement of another size"));
    return;
  }
  const auto entry = std::ranges::find(peer->entries, WriteId(ack.write), &Entry::id);
  if (entry == peer->entries.end() || entry->over || entry->offered < entry->pieces.size()) {
    peer->Break(Broken("it acknowledged a write that was not sent"));
    return;
  }
  entry->over = true;
  entry->verdict = OwnersVerdict(static_cast<Code>(ack.code), entry->epoch);
  Moved(*peer);
}

void Writer::OnLanded(ucp_ep_h from, const void* header, size_t bytes) {
  const PeerPtr peer = Find(from);
  if (peer == nullptr) return;
  Landed landed;
  if (!Read(header, bytes, &landed) || peer->batches.empty() ||
      peer->batches.front().write != WriteId(landed.write) ||
      peer->batches.front().count != landed.count) {
    peer->Break(Broken("it says that ranges have landed which were not sent"));
    return;
  }
  const Batched batched = peer->batches.front();
  peer->batches.pop_front();
  peer->batched_bytes -= batched.bytes;
  if (landed.write == 0) {
    OnProbeReply(from);
    return;
  }
  const auto entry = std::ranges::find(peer->entries, batched.write, &Entry::id);
  if (entry == peer->entries.end()) return;  // it broke
  entry->landed += batched.count;
  if (landed.code != 0 && entry->verdict)
    entry->verdict = OwnersVerdict(static_cast<Code>(landed.code), entry->epoch);
  entry->over = entry->landed == entry->pieces.size();
  Moved(*peer);
}

// ---- Progress ----

void Writer::CompleteFinished(Peer& peer) {
  const Status alive = peer.Alive();
  while (!peer.entries.empty()) {
    Entry& front = peer.entries.front();
    if ((!front.over && alive.has_value()) || front.under_way > 0) return;
    Status status = alive;
    if (front.over) status = std::move(front.verdict);
    completions_->Complete({front.id, front.epoch, std::move(status)});
    peer.entries.pop_front();
    Moved(peer);
  }
}

bool Writer::Finish(Peer& peer) {
  const Status alive = peer.Alive();
  if (alive) return false;
  if (peer.endpoint != nullptr) worker_->Close(std::exchange(peer.endpoint, nullptr));
  peer.deadline = kNever;
  if (peer.greeted != nullptr) std::exchange(peer.greeted, nullptr)(tl::unexpected(alive.error()));
  if (peer.measured != nullptr) std::exchange(peer.measured, nullptr)(alive);
  CompleteFinished(peer);
  if (!peer.removed || peer.under_way > 0 || !peer.entries.empty()) return false;
  if (peer.done != nullptr) std::exchange(peer.done, nullptr)();
  return true;
}

void Writer::Serve() {
  const Instant now = clock_.Now();
  SendCopied();
  for (const PeerPtr& peer : peers_) {
    if (now >= peer->deadline) {
      peer->Break({Code::kUnavailable,
                   fmt::format("the pool's owner took and acknowledged nothing for {:.1f} s",
                               ToSeconds(options_.stall_timeout))});
    }
    if (now >= peer->map_by) {
      peer->map_by = kNever;
      if (peer->greeted != nullptr) std::exchange(peer->greeted, nullptr)(peer->pool_bytes);
    }
    if (peer->Alive()) Offer(peer);
    CompleteFinished(*peer);
  }
  std::erase_if(peers_, [this](const PeerPtr& peer) { return Finish(*peer); });
}

Instant Writer::deadline() const {
  Instant first = kNever;
  for (const PeerPtr& peer : peers_) first = std::min({first, peer->deadline, peer->map_by});
  return first;
}

}  // namespace aisp::ucx
