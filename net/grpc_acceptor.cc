#include "net/grpc_acceptor.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <fcntl.h>
#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "common/check.h"
#include "common/log.h"
#include "net/intake_budget.h"

namespace aisp {
namespace {

// Pause before the next accept after running out of descriptors; connections stay in the queue.
constexpr int kRetryMs = 100;

bool NothingToAccept(int error) { return error == EAGAIN || error == EWOULDBLOCK; }

// Only this connection failed before it was accepted; the next may be fine.
bool ConnectionBroke(int error) {
  return error == ECONNABORTED || error == EINTR || error == EPROTO || error == ENETDOWN;
}

constexpr uint64_t kWaker = 0;
constexpr uint64_t kListener = 1;
// How often the byte counts of connections are checked.
constexpr int kBytesMs = 100;
// How often the streams of busy connections are counted. Busy means kCountBytes received since the
// last count (a call takes at least twenty bytes). The period grows with the number of connections.
constexpr Duration kCountPeriod = std::chrono::milliseconds(10);
constexpr Duration kCountPerConnection = std::chrono::microseconds(20);
constexpr int kCountMs = 10;
constexpr uint64_t kCountBytes = 8 << 10;
// Per connection twice what gRPC allows a well-behaved client (1024), since ended streams remain
// for a moment; over all connections twice the server's limit of calls.
constexpr uint64_t kMaxStreams = 2048;
constexpr uint64_t kMaxAllStreams = 16'384;
// Rate limit for new connections of an address after one of its connections was cut.
constexpr double kMoreAtOnce = 4;
constexpr double kMoreASecond = 4;
constexpr Duration kCutLately = std::chrono::seconds(10);
constexpr size_t kMostCut = 4096;
constexpr Duration kWarnInterval = std::chrono::seconds(10);

std::string PartyOf(const sockaddr_storage& peer) {
  unsigned char v6[16] = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF};
  if (peer.ss_family == AF_INET6) {
    std::memcpy(v6, &reinterpret_cast<const sockaddr_in6&>(peer).sin6_addr, sizeof(v6));
  } else {
    std::memcpy(v6 + 12, &reinterpret_cast<const sockaddr_in&>(peer).sin_addr, 4);
  }
  return AddressParty(v6);
}

}  // namespace

GrpcAcceptor::GrpcAcceptor(grpc::ServerBuilder* builder, int listen_fd,
                           std::shared_ptr<grpc::ServerCredentials> credentials,
                           const Limits& limits, std::shared_ptr<ConnectionBytes> bytes)
    : server_(builder->experimental().AddExternalConnectionAcceptor(
          grpc::ServerBuilder::experimental_type::ExternalConnectionType::FROM_FD,
          std::move(credentials))),
      listen_fd_(listen_fd),
      limits_(limits),
      bytes_(std::move(bytes)) {
  Result<Waker> waker = Waker::Create();
  AISP_CHECK_MSG(waker.has_value(), waker ? "" : waker.error().message);
  waker_ = std::move(*waker);
}

GrpcAcceptor::~GrpcAcceptor() {
  Stop();
  if (listen_fd_ >= 0) close(listen_fd_);
}

void GrpcAcceptor::Start() {
  epoll_ = UniqueDescriptor(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{};
  event.events = EPOLLIN;
  event.data.u64 = kWaker;
  bool ready = epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, waker_->fd(), &event) == 0;
  event.data.u64 = kListener;
  ready = ready && epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listen_fd_, &event) == 0;
  AISP_CHECK_MSG(ready, std::strerror(errno));
  last_number_ = kListener;
  thread_ = Thread("grpc-accept", [this] { Run(); });
}

void GrpcAcceptor::Retire(std::function<void()> ended) {
  AISP_CHECK_MSG(thread_.joinable() && !retire_, "Retire is called once, after Start");
  all_ended_ = std::move(ended);
  retire_ = true;
  waker_->Wake();
}

void GrpcAcceptor::Stop() {
  if (!thread_.joinable()) return;
  stop_ = true;
  waker_->Wake();
  thread_.Join();
  for (const auto& [number, connection] : connections_) {
    if (bytes_) bytes_->Remove(connection.key, connection.watch.get());
  }
  connections_.clear();
  CloseListener();
}

void GrpcAcceptor::CloseListener() {
  if (listen_fd_ >= 0) close(listen_fd_);
  listen_fd_ = -1;
}

void GrpcAcceptor::Run() {
  while (Serve()) {
  }
}

bool GrpcAcceptor::Serve() {
  std::array<epoll_event, 64> events{};
  const int ready = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                               connections_.empty() || !bytes_ ? -1 : kCountMs);
  if (ready < 0 && errno != EINTR) LogError("epoll failed", {{"error", std::strerror(errno)}});
  bool accept = false;
  for (int i = 0; i < ready; ++i) {
    const uint64_t number = events[static_cast<size_t>(i)].data.u64;
    if (number == kWaker) {
      waker_->Drain();
    } else if (number == kListener) {
      accept = true;
    } else {
      Ended(number);
    }
  }
  if (stop_) return false;
  if (bytes_) {
    const Instant now = SteadyClock().Now();
    EndThoseWithTooManyStreams(now);
    EndThoseThatSendTooMuch(now);
  }
  if (retire_) {
    // Other processes may hold the socket too, so closing it does not remove it from the epoll set.
    if (listen_fd_ >= 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listen_fd_, nullptr);
    CloseListener();
    if (!connections_.empty()) return true;
    all_ended_();
    return false;
  }
  // A wake during the pause belongs to the next round, so it is raised again.
  if (accept && !AcceptOne() && waker_->Wait(std::chrono::milliseconds(kRetryMs))) waker_->Wake();
  return true;
}

void GrpcAcceptor::Ended(uint64_t number) {
  const auto it = connections_.find(number);
  if (it == connections_.end()) return;
  const auto party = parties_.find(it->second.party);
  if (--party->second == 0) parties_.erase(party);
  if (bytes_ && bytes_->WasCut(it->second.key)) {
    if (cut_lately_.size() >= kMostCut) cut_lately_.clear();
    const Instant now = SteadyClock().Now();
    cut_lately_.try_emplace(it->second.party, CutLately{kMoreAtOnce, now, now})
        .first->second.cut_at = now;
  }
  if (bytes_) bytes_->Remove(it->second.key, it->second.watch.get());
  // Closing is not enough: gRPC holds the same socket until its last call has ended, and epoll
  // would report its end in a busy loop meanwhile.
  static_cast<void>(epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, it->second.watch.get(), nullptr));
  connections_.erase(it);
}

void GrpcAcceptor::EndThoseWithTooManyStreams(Instant now) {
  if (now < next_count_) return;
  uint64_t all = 0;
  Connection* most = nullptr;
  for (auto& [number, connection] : connections_) {
    const uint64_t received = ConnectionBytes::Received(connection.watch.get());
    // Recount those with many streams, which may have ended since.
    if (received - connection.counted_at >= kCountBytes || connection.streams > kMaxStreams / 8) {
      connection.counted_at = received;
      connection.streams = open_streams_.Of(connection.key);
    }
    if (connection.streams > kMaxStreams) EndForStreams(&connection, now);
    all += connection.streams;
    if (most == nullptr || connection.streams > most->streams) most = &connection;
  }
  if (all > kMaxAllStreams) EndForStreams(most, now);
  next_count_ = SteadyClock().Now() + kCountPeriod + kCountPerConnection * connections_.size();
}

void GrpcAcceptor::EndForStreams(Connection* connection, Instant now) {
  bytes_->Cut(connection->key);
  if (now < next_stream_warning_) return;
  next_stream_warning_ = now + kWarnInterval;
  LogWarning("gRPC connections are closed: too many open streams",
             {{"peer", connection->party}, {"streams", connection->streams}});
}

void GrpcAcceptor::EndThoseThatSendTooMuch(Instant now) {
  if (now < next_look_) return;
  next_look_ = now + std::chrono::milliseconds(kBytesMs);
  const size_t ended = bytes_->Enforce();
  if (ended > 0) {
    LogWarning("gRPC connections were closed: a request head without end",
               {{"connections", ended}, {"bytes", ConnectionBytes::kSlack}});
  }
}

bool GrpcAcceptor::DialsTooOften(const std::string& party) {
  const auto it = cut_lately_.find(party);
  if (it == cut_lately_.end()) return false;
  CutLately& cut = it->second;
  const Instant now = SteadyClock().Now();
  if (now - cut.cut_at > kCutLately) {
    cut_lately_.erase(it);
    return false;
  }
  cut.left = std::min(kMoreAtOnce, cut.left + ToMs(now - cut.at) / 1000 * kMoreASecond);
  cut.at = now;
  if (cut.left < 1) return true;
  cut.left -= 1;
  return false;
}

bool GrpcAcceptor::Admit(int fd, const sockaddr_storage& peer) {
  const std::string party = PartyOf(peer);
  // A client that was cut redials at once, while its old calls are still being processed.
  if (DialsTooOften(party)) {
    close(fd);
    return false;
  }
  const auto held = parties_.find(party);
  const bool of_party = held != parties_.end() && held->second >= limits_.per_address;
  UniqueDescriptor watch(fcntl(fd, F_DUPFD_CLOEXEC, 0));
  epoll_event event{};
  event.data.u64 = last_number_ + 1;  // no events: the hang-up is always reported
  const bool full = of_party || connections_.size() >= limits_.connections;
  if (full || watch.get() < 0 || epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, watch.get(), &event) != 0) {
    if (const Instant now = SteadyClock().Now(); now >= next_warning_) {
      next_warning_ = now + kWarnInterval;
      LogWarning("a gRPC connection was closed: there are too many",
                 {{"peer", party}, {"connections", connections_.size()}, {"of_peer", of_party}});
    }
    close(fd);
    return false;
  }
  std::string key = PeerKey(peer);
  if (bytes_) bytes_->Add(key, watch.get());
  connections_.emplace(++last_number_, Connection{std::move(watch), party, std::move(key)});
  ++parties_[party];
  return true;
}

bool GrpcAcceptor::AcceptOne() {
  sockaddr_storage peer{};
  socklen_t size = sizeof(peer);
  const int fd =
      accept4(listen_fd_, reinterpret_cast<sockaddr*>(&peer), &size, SOCK_NONBLOCK | SOCK_CLOEXEC);
  if (fd < 0) {
    // Another process that shares the socket may have accepted it.
    if (NothingToAccept(errno) || ConnectionBroke(errno)) return true;
    LogWarning("a gRPC connection could not be accepted", {{"error", std::strerror(errno)}});
    return false;
  }
  if (!Admit(fd, peer)) return true;
  const int yes = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof(yes));
  if (limits_.receive_buffer > 0) {
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &limits_.receive_buffer, sizeof(limits_.receive_buffer));
  }
  grpc::experimental::ExternalConnectionAcceptor::NewConnectionParameters connection;
  connection.listener_fd = listen_fd_;
  connection.fd = fd;
  server_->HandleNewConnection(&connection);
  return true;
}

}  // namespace aisp
