#include "kvcache/transport/tcp_peer.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvcache/transport/tcp_socket.h"

namespace aisp {
namespace {

// A message ends in a packet with what follows it: its checksum, the next message. Not a short one:
// a checksum may cost a packet of its own, and its owner would sleep while others are collected.
constexpr uint64_t kShortBytes = 8 << 10;

Error Broken(const char* what) {
  return {Code::kUnavailable, fmt::format("the connection to the pool's owner broke: {}", what)};
}

template <typename T>
void AppendBytes(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(value));
}

}  // namespace

TcpWriter::Peer::Peer(TcpWriter* writer, KvPeerId id, UniqueFd socket, uint32_t takes)
    : writer_(writer),
      id_(id),
      socket_(std::move(socket)),
      takes_checksums_behind_((takes & kTcpChecksumBehind) != 0),
      checksums_(WantsChecksums(takes)),
      stage_(writer->source_) {
  TuneTcp(socket_.get(), writer->options_.stall_timeout);
}

bool TcpWriter::Peer::WantsChecksums(uint32_t takes) const {
  if (writer_->options_.checksums != TcpChecksums::kBetweenMachines)
    return writer_->options_.checksums == TcpChecksums::kAll;
  const uint32_t mark = takes >> kTcpMarkShift;
  return mark == 0 || mark != WithinMachineMark(socket_.get());
}

Status TcpWriter::Peer::Alive() const {
  std::lock_guard lock(failure_mutex_);
  return failure_;
}

void TcpWriter::Peer::Watch() {
  epoll_event event{.events = EPOLLIN, .data = {.u64 = id_.value}};
  if (epoll_ctl(writer_->epoll_.get(), EPOLL_CTL_ADD, socket_.get(), &event) != 0)
    Fail(Broken(std::strerror(errno)));
}

void TcpWriter::Peer::WantWrite(bool want) {
  if (want == want_write_ || !socket_) return;
  want_write_ = want;
  epoll_event event{.events = EPOLLIN | (want ? EPOLLOUT : 0U), .data = {.u64 = id_.value}};
  static_cast<void>(epoll_ctl(writer_->epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event));
}

void TcpWriter::Peer::Moved() {
  deadline_ = entries_.empty() ? kNever : writer_->clock_.Now() + writer_->options_.stall_timeout;
}

void TcpWriter::Peer::Enqueue(WriteJob job) {
  Entry& entry = entries_.emplace_back();
  for (const BlockCopy& copy : job.copies) entry.rest += copy.bytes;
  entry.job = std::move(job);
  if (const Status alive = Alive(); !alive) {
    CompleteFront(alive);
    return;
  }
  if (deadline_ == kNever) Moved();
}

void TcpWriter::Peer::Cancel(Epoch epoch) {
  for (size_t i = next_; i < entries_.size(); ++i) {
    Entry& entry = entries_[i];
    if (!entry.begun && entry.job.epoch == epoch) entry.state = State::kCancelled;
  }
  CompleteCancelled();
}

void TcpWriter::Peer::Serve() {
  if (!socket_) return;
  Status status = ReadAcks();
  if (status) status = SendQueued();
  if (!status) Fail(status.error());
}

void TcpWriter::Peer::Fail(const Error& why) {
  {
    std::lock_guard lock(failure_mutex_);
    if (failure_) failure_ = tl::unexpected(why);
  }
  if (socket_) {
    // Removed explicitly: a copy of the descriptor in a forked child would keep it in the set.
    static_cast<void>(epoll_ctl(writer_->epoll_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr));
    socket_.Reset();
  }
  while (!entries_.empty()) CompleteFront(tl::unexpected(why));
  deadline_ = kNever;
}

void TcpWriter::Peer::CheckDeadline(Instant now) {
  if (now < deadline_) return;
  Fail({Code::kUnavailable,
        fmt::format("the pool's owner took and acknowledged nothing for {:.1f} s",
                    ToSeconds(writer_->options_.stall_timeout))});
}

void TcpWriter::Peer::CompleteFront(Status status) {
  WriteJob job = std::move(entries_.front().job);
  entries_.pop_front();
  if (next_ > 0) --next_;
  writer_->completions_->Complete({job.id, job.epoch, std::move(status)});
}

void TcpWriter::Peer::CompleteCancelled() {
  while (!entries_.empty() && entries_.front().state == State::kCancelled) {
    CompleteFront(
        ::aisp::Fail(Code::kCancelled, "the epoch was cancelled before this write began"));
  }
  if (entries_.empty()) deadline_ = kNever;
}

// ---- Sending ----

void TcpWriter::Peer::TakePart(Entry& entry) {
  const std::vector<BlockCopy>& copies = entry.job.copies;
  entry.begun = true;
  part_.clear();
  // A staged payload is copied at once and sent as one message.
  uint64_t room = stage_.active() ? UINT64_MAX : kTcpPartBytes;
  while (entry.copy < copies.size() && room > 0) {
    const BlockCopy& copy = copies[entry.copy];
    const uint64_t bytes = std::min(copy.bytes - entry.in_copy, room);
    part_.push_back({copy.src_offset + entry.in_copy, copy.dst_offset + entry.in_copy, bytes});
    room -= bytes;
    entry.rest -= bytes;
    entry.in_copy += bytes;
    if (entry.in_copy < copy.bytes) break;
    ++entry.copy;
    entry.in_copy = 0;
  }
}

Status TcpWriter::Peer::BeginMessage(Entry& entry) {
  TakePart(entry);
  TcpWriteHeader header{.id = entry.job.id.value,
                        .epoch = entry.job.epoch.value,
                        .copies = static_cast<uint32_t>(part_.size()),
                        .more = static_cast<uint32_t>(std::min<uint64_t>(entry.rest, UINT32_MAX))};
  if (stage_.active()) {
    stage_.Clear();
    for (const BlockCopy& copy : part_) stage_.Add(copy.src_offset, copy.bytes);
    AISP_RETURN_IF_ERROR(stage_.Reserve());
    AISP_RETURN_IF_ERROR(stage_.FromPool());
  }
  const bool checksum = checksums_ && !part_.empty();
  if (checksum) header.flags |= kTcpChecksummed;
  uint64_t payload = 0;
  for (const BlockCopy& copy : part_) payload += copy.bytes;
  checksum_behind_ =
      checksum && takes_checksums_behind_ && !stage_.active() && payload > kShortBytes;
  if (checksum_behind_) {
    header.flags |= kTcpChecksumBehind;
  } else if (checksum) {
    header.checksum = PartChecksum();
  }
  header.payload_bytes = payload;
  head_.clear();
  if (due_) AppendBytes(head_, *std::exchange(due_, std::nullopt));
  AppendBytes(head_, header);
  for (const BlockCopy& copy : part_) AppendBytes(head_, TcpCopy{copy.dst_offset, copy.bytes});
  message_bytes_ = head_.size() + header.payload_bytes;
  message_of_entry_ = true;
  sent_bytes_ = 0;
  hashed_ = 0;
  hashed_bytes_ = 0;
  sum_ = 0;
  return {};
}

uint64_t TcpWriter::Peer::PartChecksum() const {
  if (stage_.active()) return stage_.Checksum();
  uint64_t sum = 0;
  for (const BlockCopy& copy : part_)
    sum = FoldChecksum(sum, {writer_->source_.base + copy.src_offset, copy.bytes});
  return sum;
}

void TcpWriter::Peer::HashSent() {
  if (!message_of_entry_ || !checksum_behind_) return;
  for (; hashed_ < part_.size(); ++hashed_) {
    const BlockCopy& copy = part_[hashed_];
    if (head_.size() + hashed_bytes_ + copy.bytes > sent_bytes_) return;
    sum_ = FoldChecksum(sum_, {writer_->source_.base + copy.src_offset, copy.bytes});
    hashed_bytes_ += copy.bytes;
  }
}

void TcpWriter::Peer::EndMessage() {
  message_bytes_ = 0;
  if (!message_of_entry_) return;
  ++entries_[next_].unacknowledged;
  if (checksum_behind_) due_ = sum_;
}

void TcpWriter::Peer::BeginChecksum() {
  part_.clear();
  head_.clear();
  AppendBytes(head_, *std::exchange(due_, std::nullopt));
  message_bytes_ = head_.size();
  message_of_entry_ = false;
  sent_bytes_ = 0;
}

size_t TcpWriter::Peer::MessageParts(std::array<iovec, 64>& iov, bool* last) const {
  size_t count = 0;
  uint64_t skip = sent_bytes_;
  uint64_t bytes = 0;
  const auto add = [&](const std::byte* base, uint64_t size) {
    const uint64_t sent = std::min(skip, size);
    skip -= sent;
    if (size == sent) return;
    iov[count++] = {const_cast<std::byte*>(base) + sent, size - sent};
    bytes += size - sent;
  };
  add(head_.data(), head_.size());
  if (stage_.active()) {
    if (!part_.empty()) add(stage_.data(), stage_.bytes());
  } else {
    for (size_t i = 0; i < part_.size() && count < iov.size(); ++i)
      add(writer_->source_.base + part_[i].src_offset, part_[i].bytes);
  }
  *last = sent_bytes_ + bytes == message_bytes_;
  return count;
}

bool TcpWriter::Peer::SkipFinished() {
  if (next_ == entries_.size()) return false;
  Entry& entry = entries_[next_];
  // A cancelled entry completes after the preceding sent ones; nothing more is sent of a failed
  // one.
  if (entry.state != State::kCancelled && !AllTaken(entry) && entry.verdict) return false;
  if (entry.state == State::kQueued) entry.state = State::kSent;
  ++next_;
  CompleteAcknowledged();
  return true;
}

bool TcpWriter::Peer::AnotherFollows() const {
  return message_bytes_ > kShortBytes && AllTaken(entries_[next_]) && next_ + 1 < entries_.size() &&
         entries_[next_ + 1].state == State::kQueued;
}

Status TcpWriter::Peer::SendQueued() {
  // Whoever waits for the first of several writes hears of it while the last are sent, and can ask
  // for more before there is nothing to send.
  size_t read_at = (entries_.size() - next_) / 2;
  while (message_bytes_ > 0 || next_ < entries_.size() || due_) {
    if (message_bytes_ == 0 && SkipFinished()) {
      const size_t left = entries_.size() - next_;
      if (left == 0 || left > read_at) continue;
      read_at = left / 2;
      AISP_RETURN_IF_ERROR(ReadAcks());
      continue;
    }
    if (message_bytes_ == 0 && next_ < entries_.size()) {
      AISP_RETURN_IF_ERROR(BeginMessage(entries_[next_]));
    } else if (message_bytes_ == 0) {
      BeginChecksum();
    }
    std::array<iovec, 64> iov;
    bool last = false;
    msghdr message{};
    message.msg_iov = iov.data();
    message.msg_iovlen = MessageParts(iov, &last);
    // What follows goes into the same packet; the payload's whole packets go at once.
    const bool follows = !last || (message_of_entry_ && (checksum_behind_ || AnotherFollows()));
    const int more = follows ? MSG_MORE : 0;
    const ssize_t n = sendmsg(socket_.get(), &message, MSG_NOSIGNAL | MSG_DONTWAIT | more);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) {
      WantWrite(true);
      return {};
    }
    if (n < 0) return tl::unexpected(Broken(std::strerror(errno)));
    sent_bytes_ += static_cast<uint64_t>(n);
    Moved();
    HashSent();
    if (sent_bytes_ == message_bytes_) EndMessage();
  }
  CompleteCancelled();
  WantWrite(false);
  return {};
}

// ---- Acknowledgements ----

Status TcpWriter::Peer::ReadAcks() {
  while (true) {
    const size_t room = sizeof(acks_) - ack_bytes_;
    const ssize_t n = recv(socket_.get(), reinterpret_cast<std::byte*>(acks_.data()) + ack_bytes_,
                           room, MSG_DONTWAIT);
    if (n == 0) return tl::unexpected(Broken("it closed the connection"));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return {};
    if (n < 0) return tl::unexpected(Broken(std::strerror(errno)));
    ack_bytes_ += static_cast<size_t>(n);
    const size_t whole = ack_bytes_ / sizeof(TcpAck);
    for (size_t i = 0; i < whole; ++i) AISP_RETURN_IF_ERROR(OnAck(acks_[i]));
    if (whole < acks_.size()) acks_[0] = acks_[whole];
    ack_bytes_ -= whole * sizeof(TcpAck);
    // Less than asked for: the socket has no more now.
    if (static_cast<size_t>(n) < room) return {};
  }
}

Status TcpWriter::Peer::OnAck(const TcpAck& ack) {
  CompleteCancelled();
  if (ack.magic != kTcpAckMagic || entries_.empty() || entries_.front().unacknowledged == 0 ||
      entries_.front().job.id.value != ack.id) {
    return tl::unexpected(Broken("it acknowledged a write that was not sent"));
  }
  Entry& entry = entries_.front();
  --entry.unacknowledged;
  if (entry.verdict) entry.verdict = OwnersVerdict(static_cast<Code>(ack.code), entry.job.epoch);
  CompleteAcknowledged();
  Moved();
  return {};
}

void TcpWriter::Peer::CompleteAcknowledged() {
  CompleteCancelled();
  if (entries_.empty()) return;
  const Entry& front = entries_.front();
  if (front.state != State::kSent || front.unacknowledged > 0) return;
  CompleteFront(front.verdict);
  CompleteCancelled();
}

}  // namespace aisp
