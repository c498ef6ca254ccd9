#include "kvcache/transport/tcp_owner.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string>
#include <utility>

#include "common/log.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_connection.h"
#include "kvcache/transport/tcp_socket.h"

namespace aisp {
namespace {
constexpr size_t kWasteBytes = 256 << 10;
constexpr int kStallCheckMs = 200;
// The backlog may fill faster than it is emptied; writers are served in between.
constexpr int kAcceptsPerRound = 64;
constexpr Duration kWarnInterval = std::chrono::seconds(10);

bool Watch(const UniqueFd& epoll, int fd) {
  epoll_event event{.events = EPOLLIN, .data = {.fd = fd}};
  return epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

}  // namespace

Result<std::unique_ptr<TcpOwner>> TcpOwner::Start(const KvRegion& region, const Options& options) {
  AISP_ASSIGN_OR_RETURN(UniqueFd listen, ListenTcp(options.bind_address, options.port));
  AISP_ASSIGN_OR_RETURN(const uint16_t port, LocalPort(listen.get()));
  AISP_ASSIGN_OR_RETURN(Waker waker, Waker::Create());
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  if (!epoll || !Watch(epoll, listen.get()) || !Watch(epoll, waker.fd())) {
    return ResourceExhausted("epoll; raise the limit on open files (ulimit -n)");
  }
  return std::unique_ptr<TcpOwner>(
      new TcpOwner(region, options, std::move(listen), port, std::move(epoll), std::move(waker)));
}

TcpOwner::TcpOwner(const KvRegion& region, const Options& options, UniqueFd listen, uint16_t port,
                   UniqueFd epoll, Waker waker)
    : region_(region),
      options_(options),
      listen_(std::move(listen)),
      port_(port),
      cookie_(NewCookie()),
      epoll_(std::move(epoll)),
      waker_(std::move(waker)),
      waste_(kWasteBytes),
      thread_("kv-tcp-owner", [this] { Run(); }) {}

TcpOwner::~TcpOwner() {
  stop_ = true;
  waker_.Wake();
  thread_.Join();
}

void TcpOwner::Allow(Epoch epoch, std::span<const BlockCopy> allowed) {
  std::lock_guard lock(mutex_);
  gate_.Allow(epoch, allowed);
}

void TcpOwner::Revoke(Epoch epoch) {
  std::lock_guard lock(mutex_);
  gate_.Revoke(epoch);
}

void TcpOwner::Run() {
  std::array<epoll_event, 64> events;
  while (!stop_) {
    bool any_waiting = false;
    for (const auto& [fd, connection] : connections_)
      any_waiting = any_waiting || connection->Waiting();
    const int n = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()),
                             any_waiting || accept_paused_ ? kStallCheckMs : -1);
    if (accept_paused_) PauseAccepting(false);
    for (int i = 0; i < n; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == listen_.get()) {
        Accept();
      } else if (fd == waker_.fd()) {
        waker_.Drain();
      } else if (const auto it = connections_.find(fd); it != connections_.end()) {
        if (!it->second->Serve(events[static_cast<size_t>(i)].events)) connections_.erase(it);
      }
    }
    if (any_waiting) CloseStalled();
  }
  connections_.clear();
}

void TcpOwner::Accept() {
  for (int i = 0; i < kAcceptsPerRound; ++i) {
    sockaddr_storage peer{};
    socklen_t size = sizeof(peer);
    UniqueFd socket(accept4(listen_.get(), reinterpret_cast<sockaddr*>(&peer), &size,
                            SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      // Out of descriptors: the pending connection would wake this thread in a busy loop.
      if (errno == EMFILE || errno == ENFILE || errno == ENOMEM) PauseAccepting(true);
      return;
    }
    const int fd = socket.get();
    auto connection =
        std::make_unique<Connection>(this, std::move(socket), PartyOf(peer), clock_.Now());
    if (Watch(epoll_, fd)) connections_.emplace(fd, std::move(connection));
    MakeRoomForStrangers();
  }
}

size_t TcpOwner::Writers() const {
  return static_cast<size_t>(std::ranges::count_if(
      connections_, [](const auto& entry) { return !entry.second->stranger(); }));
}

TcpOwner::Connection* TcpOwner::StrangerToClose() const {
  std::unordered_map<std::string, size_t> held;
  for (const auto& [fd, connection] : connections_) {
    if (connection->stranger()) ++held[connection->party()];
  }
  Connection* worst = nullptr;
  for (const auto& [fd, connection] : connections_) {
    if (!connection->stranger()) continue;
    if (worst == nullptr) worst = connection.get();
    const size_t mine = held[connection->party()];
    const size_t most = held[worst->party()];
    if (mine > most || (mine == most && connection->since() < worst->since()))
      worst = connection.get();
  }
  return worst;
}

void TcpOwner::MakeRoomForStrangers() {
  while (connections_.size() - Writers() > options_.max_strangers) {
    Connection* worst = StrangerToClose();
    // It may have greeted meanwhile.
    if (worst->Serve(EPOLLIN) && !worst->stranger()) continue;
    Warn("connections to the KV pool were closed: too many have not greeted");
    connections_.erase(worst->fd());
  }
}

void TcpOwner::Warn(const char* what) {
  const Instant now = clock_.Now();
  if (now < next_warning_) return;
  next_warning_ = now + kWarnInterval;
  LogWarning(what, {{"writers", Writers()},
                    {"most", options_.max_writers},
                    {"strangers", connections_.size() - Writers()}});
}

void TcpOwner::PauseAccepting(bool pause) {
  accept_paused_ = pause;
  epoll_event event{.events = pause ? 0U : static_cast<uint32_t>(EPOLLIN),
                    .data = {.fd = listen_.get()}};
  static_cast<void>(epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, listen_.get(), &event));
}

void TcpOwner::CloseStalled() {
  const Instant now = clock_.Now();
  // Data below the wake threshold counts as progress: read it before deciding.
  std::erase_if(connections_, [now](const auto& entry) {
    Connection& c = *entry.second;
    return c.Stalled(now) && (c.stranger() || !c.Serve(EPOLLIN) || c.Stalled(now));
  });
}

}  // namespace aisp
