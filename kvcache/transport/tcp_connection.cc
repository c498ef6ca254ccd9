#include "kvcache/transport/tcp_connection.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "kvcache/transport/completion_queue.h"
#include "kvcache/transport/tcp_socket.h"

namespace aisp {
namespace {

// The lock is held while a chunk lands, so this bounds how long Revoke waits.
constexpr size_t kChunkBytes = 256 << 10;
// Wakes per packet would cost as much as the copy. It waits for half of the remaining bytes, so
// that long writes wake it seldom and little is left to do after the last byte.
constexpr uint64_t kLeastWakeBytes = 128 << 10;
constexpr uint64_t kMostWakeBytes = 1 << 20;
constexpr int kStepsPerServe = 64;
constexpr Duration kHelloLimit = std::chrono::seconds(2);
// A writer that does not read its acknowledgements is not served until it does.
constexpr size_t kMaxUnsentAckBytes = 64 << 10;

template <typename T>
void AppendBytes(std::vector<std::byte>& out, const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  out.insert(out.end(), bytes, bytes + sizeof(value));
}

}  // namespace

TcpOwner::Connection::Connection(TcpOwner* owner, UniqueFd socket, std::string party, Instant now)
    : owner_(owner),
      socket_(std::move(socket)),
      party_(std::move(party)),
      since_(now),
      stalled_at_(now + std::min(kHelloLimit, owner->options_.stall_timeout)),
      stage_(owner->region_) {
  TuneTcp(socket_.get(), owner->options_.stall_timeout);
}

TcpOwner::Connection::~Connection() {
  // Removed explicitly: a copy of the descriptor in a forked child would keep it in the set.
  static_cast<void>(epoll_ctl(owner_->epoll_.get(), EPOLL_CTL_DEL, socket_.get(), nullptr));
}

bool TcpOwner::Connection::Serve(uint32_t events) {
  if ((events & EPOLLOUT) != 0 && !Flush()) return false;
  int step = 0;
  do {
    for (; out_.size() < kMaxUnsentAckBytes; ++step) {
      // What is ahead is not seen by epoll, so it is always handled.
      if (step >= kStepsPerServe && unread_.empty()) break;
      reads_ahead_ = step < kStepsPerServe;
      const Io io = Step();
      if (io == Io::kClosed) return false;
      if (io == Io::kWouldBlock) break;
    }
    if (!Flush()) return false;
  } while (!unread_.empty() && out_.size() < kMaxUnsentAckBytes);
  ChooseWakeup();
  return true;
}

ssize_t TcpOwner::Connection::Receive(std::span<iovec> iov, bool past) {
  if (!unread_.empty()) {
    size_t taken = 0;
    for (const iovec& into : iov) {
      const size_t bytes = std::min(into.iov_len, unread_.size());
      std::memcpy(into.iov_base, unread_.data(), bytes);
      unread_ = unread_.subspan(bytes);
      taken += bytes;
    }
    return static_cast<ssize_t>(taken);
  }
  std::array<iovec, 65> all;
  const auto end = std::ranges::copy(iov, all.begin()).out;
  const bool more = past && reads_ahead_;
  if (more) *end = {ahead_.data(), ahead_.size()};
  msghdr message{};
  message.msg_iov = all.data();
  message.msg_iovlen = iov.size() + (more ? 1 : 0);
  const ssize_t n = recvmsg(socket_.get(), &message, MSG_DONTWAIT);
  size_t wanted = 0;
  for (const iovec& into : iov) wanted += into.iov_len;
  if (n <= 0 || static_cast<size_t>(n) <= wanted) return n;
  unread_ = std::span(ahead_).first(static_cast<size_t>(n) - wanted);
  return static_cast<ssize_t>(wanted);
}

uint64_t TcpOwner::Connection::BytesToCome() const {
  switch (state_) {
    case State::kHeader:
      return announced_;
    case State::kPayload:
      return remaining_ + (verdict_ ? announced_ : 0);
    case State::kChecksum:
      return sizeof(header_.checksum) - filled_ + (verdict_ ? announced_ : 0);
    default:
      return 0;
  }
}

void TcpOwner::Connection::ChooseWakeup() {
  const uint64_t rest = BytesToCome();
  const size_t bytes =
      std::min(std::clamp(rest / 2, kLeastWakeBytes, kMostWakeBytes), std::max<uint64_t>(rest, 1));
  if (bytes == wake_bytes_) return;
  WakeAtBytes(socket_.get(), bytes);
  wake_bytes_ = bytes;
}

TcpOwner::Connection::Io TcpOwner::Connection::Step() {
  Io io = Io::kClosed;
  bool good = true;
  switch (state_) {
    case State::kHello:
      io = Fill(&hello_, sizeof(hello_));
      if (filled_ == sizeof(hello_)) good = OnHello();
      break;
    case State::kHeader:
      io = Fill(&header_, sizeof(header_));
      if (filled_ == sizeof(header_)) good = OnHeader();
      break;
    case State::kCopies:
      io = Fill(copies_.data(), copies_.size() * sizeof(TcpCopy));
      if (filled_ == copies_.size() * sizeof(TcpCopy)) good = OnCopies();
      break;
    case State::kPayload:
      io = ReadPayload();
      break;
    case State::kChecksum:
      io = Fill(&header_.checksum, sizeof(header_.checksum));
      if (filled_ == sizeof(header_.checksum)) OnWriteComplete();
      break;
  }
  return good ? io : Io::kClosed;
}

TcpOwner::Connection::Io TcpOwner::Connection::Fill(void* target, size_t size) {
  if (filled_ == size) return Io::kProgress;
  iovec rest{static_cast<std::byte*>(target) + filled_, size - filled_};
  const ssize_t n = Receive({&rest, 1}, /*past=*/true);
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Io::kWouldBlock : Io::kClosed;
  if (n == 0) return Io::kClosed;
  filled_ += static_cast<size_t>(n);
  // A slow greeting gets no extra time.
  if (!stranger()) stalled_at_ = owner_->clock_.Now() + owner_->options_.stall_timeout;
  return Io::kProgress;
}

void TcpOwner::Connection::NextMessage(State state) {
  state_ = state;
  filled_ = 0;
  // A connection may be silent between writes for any time, but not between parts of one.
  if (state == State::kHeader && announced_ == 0) stalled_at_ = kNever;
}

bool TcpOwner::Connection::OnHello() {
  if (hello_.magic != kTcpMagic) return false;
  TcpHelloReply reply{.takes = kTcpChecksumBehind | WithinMachineMark(socket_.get())
                                                        << kTcpMarkShift,
                      .pool_bytes = owner_->region_.bytes};
  if (hello_.cookie != owner_->cookie_) {
    reply = {.code = static_cast<uint32_t>(Code::kPermissionDenied)};
  } else if (owner_->Writers() >= owner_->options_.max_writers) {
    reply = {.code = static_cast<uint32_t>(Code::kResourceExhausted)};
    owner_->Warn("a KV writer was refused: too many are connected");
  }
  AppendBytes(out_, reply);
  if (reply.code != 0) {
    static_cast<void>(Flush());
    return false;
  }
  NextMessage(State::kHeader);
  return true;
}

bool TcpOwner::Connection::OnHeader() {
  const bool probe = (header_.flags & kTcpProbe) != 0;
  if (header_.magic != kTcpWriteMagic || header_.copies > kTcpMaxCopies ||
      header_.payload_bytes > kTcpMaxPayload || (probe && header_.copies != 0)) {
    return false;
  }
  copies_.resize(header_.copies);
  NextMessage(State::kCopies);
  return copies_.empty() ? OnCopies() : true;
}

bool TcpOwner::Connection::OnCopies() {
  uint64_t sum = 0;
  for (const TcpCopy& copy : copies_) {
    if (copy.bytes > kTcpMaxPayload) return false;
    sum += copy.bytes;
  }
  const bool probe = (header_.flags & kTcpProbe) != 0;
  if (!probe && sum != header_.payload_bytes) return false;
  verdict_ = probe ? Status() : CheckGrants();
  if (verdict_ && !probe && stage_.active()) verdict_ = PrepareStage();
  copy_ = 0;
  in_copy_ = 0;
  hashed_ = 0;
  sum_ = 0;
  remaining_ = header_.payload_bytes;
  announced_ = probe || refused_ == header_.id ? 0 : header_.more;
  NextMessage(State::kPayload);
  if (remaining_ == 0) OnPayload();
  return true;
}

Status TcpOwner::Connection::CheckGrants() const {
  std::lock_guard lock(owner_->mutex_);
  for (const TcpCopy& copy : copies_) {
    const BlockCopy target{.src_offset = 0, .dst_offset = copy.offset, .bytes = copy.bytes};
    AISP_RETURN_IF_ERROR(CheckCopies({&target, 1}, copy.bytes, owner_->region_.bytes));
    AISP_RETURN_IF_ERROR(owner_->gate_.Check(Epoch(header_.epoch), copy.offset, copy.bytes));
  }
  return {};
}

Status TcpOwner::Connection::PrepareStage() {
  // Copies of one write do not overlap, so a valid one is no longer than the pool.
  if (header_.payload_bytes > owner_->region_.bytes)
    return Fail(Code::kOutOfRange, "a write longer than the pool");
  stage_.Clear();
  for (const TcpCopy& copy : copies_) stage_.Add(copy.offset, copy.bytes);
  return stage_.Reserve();
}

Status TcpOwner::Connection::StoreStage() {
  std::lock_guard lock(owner_->mutex_);
  if (!owner_->gate_.Knows(Epoch(header_.epoch)))
    return FailedPrecondition("the epoch was revoked while its write arrived");
  return stage_.ToPool();
}

// Where the next payload bytes go, at most kChunkBytes: in the pool, or in the stage before it.
size_t TcpOwner::Connection::PayloadTargets(std::array<iovec, 64>& iov) {
  if (stage_.active()) {
    const uint64_t done = header_.payload_bytes - remaining_;
    iov[0] = {stage_.data() + done, std::min<uint64_t>(remaining_, kChunkBytes)};
    return 1;
  }
  size_t count = 0;
  uint64_t room = kChunkBytes;
  uint64_t skip = in_copy_;
  for (size_t i = copy_; i < copies_.size() && count < iov.size() && room > 0; ++i, skip = 0) {
    const uint64_t bytes = std::min(copies_[i].bytes - skip, room);
    if (bytes > 0) iov[count++] = {owner_->region_.base + copies_[i].offset + skip, bytes};
    room -= bytes;
  }
  return count;
}

TcpOwner::Connection::Io TcpOwner::Connection::ReadPayload() {
  ssize_t n = 0;
  const bool probe = (header_.flags & kTcpProbe) != 0;
  {
    std::unique_lock lock(owner_->mutex_);
    if (verdict_ && !probe && !owner_->gate_.Knows(Epoch(header_.epoch))) {
      verdict_ = FailedPrecondition("the epoch was revoked while its write arrived");
    }
    if (verdict_ && !probe) {
      std::array<iovec, 64> iov;
      const std::span<iovec> targets(iov.data(), PayloadTargets(iov));
      uint64_t bytes = 0;
      for (const iovec& target : targets) bytes += target.iov_len;
      n = Receive(targets, /*past=*/bytes == remaining_);
      if (n > 0) Landed(static_cast<size_t>(n));
      HashLanded();
    } else {
      lock.unlock();
      std::vector<std::byte>& waste = owner_->waste_;
      iovec rest{waste.data(), std::min<uint64_t>(waste.size(), remaining_)};
      n = Receive({&rest, 1}, /*past=*/rest.iov_len == remaining_);
      if (n > 0) Landed(static_cast<size_t>(n));
    }
  }
  if (n < 0) return errno == EAGAIN || errno == EINTR ? Io::kWouldBlock : Io::kClosed;
  if (n == 0) return Io::kClosed;
  stalled_at_ = owner_->clock_.Now() + owner_->options_.stall_timeout;
  if (remaining_ == 0) OnPayload();
  return Io::kProgress;
}

void TcpOwner::Connection::Landed(size_t bytes) {
  remaining_ -= bytes;
  in_copy_ += bytes;
  while (copy_ < copies_.size() && in_copy_ >= copies_[copy_].bytes)
    in_copy_ -= copies_[copy_++].bytes;
}

void TcpOwner::Connection::HashLanded() {
  if (stage_.active() || (header_.flags & kTcpChecksummed) == 0) return;
  for (; hashed_ < copy_; ++hashed_) {
    const TcpCopy& copy = copies_[hashed_];
    sum_ = FoldChecksum(sum_, {owner_->region_.base + copy.offset, copy.bytes});
  }
}

void TcpOwner::Connection::OnPayload() {
  const bool probe = (header_.flags & kTcpProbe) != 0;
  if (probe || (header_.flags & kTcpChecksumBehind) == 0) return OnWriteComplete();
  NextMessage(State::kChecksum);
}

bool TcpOwner::Connection::ChecksumMatches() {
  if (stage_.active()) return stage_.Checksum() == header_.checksum;
  // Only empty copies are left: the blocks of a revoked epoch may be another's by now.
  copy_ = copies_.size();
  HashLanded();
  return sum_ == header_.checksum;
}

void TcpOwner::Connection::OnWriteComplete() {
  const bool checksummed =
      (header_.flags & kTcpChecksummed) != 0 && (header_.flags & kTcpProbe) == 0;
  if (verdict_ && checksummed && !ChecksumMatches()) verdict_ = DataLoss("checksum");
  const bool probe = (header_.flags & kTcpProbe) != 0;
  if (verdict_ && !probe && stage_.active() && header_.payload_bytes > 0) verdict_ = StoreStage();
  const Code code = verdict_ ? Code::kOk : verdict_.error().code;
  if (!verdict_) {
    refused_ = header_.id;
    announced_ = 0;
  }
  AppendBytes(out_, TcpAck{.code = static_cast<uint32_t>(code), .id = header_.id});
  NextMessage(State::kHeader);
}

bool TcpOwner::Connection::Flush() {
  size_t sent = 0;
  while (sent < out_.size()) {
    const ssize_t n =
        send(socket_.get(), out_.data() + sent, out_.size() - sent, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      sent += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {
      break;
    } else if (errno != EINTR) {
      return false;
    }
  }
  out_.erase(out_.begin(), out_.begin() + static_cast<ptrdiff_t>(sent));
  const bool want_write = !out_.empty();
  if (want_write != want_write_) {
    want_write_ = want_write;
    // A peer that does not read its acknowledgements is not read from either.
    epoll_event event{.events = want_write ? EPOLLOUT : EPOLLIN, .data = {.fd = socket_.get()}};
    if (epoll_ctl(owner_->epoll_.get(), EPOLL_CTL_MOD, socket_.get(), &event) != 0) return false;
    stalled_at_ = want_write ? owner_->clock_.Now() + owner_->options_.stall_timeout : stalled_at_;
  }
  return true;
}

}  // namespace aisp
