#include "kvcache/transport/pool_listener.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/log.h"
#include "kvcache/transport/cookie.h"

namespace aisp {
namespace {

constexpr Duration kHelloLimit = std::chrono::seconds(2);
constexpr int kAcceptPauseMs = 200;
// Connections that have not greeted yet; a real writer greets at once.
constexpr size_t kMaxStrangers = 64;

}  // namespace

Result<std::unique_ptr<PoolListener>> PoolListener::Start(const PoolOffer& offer,
                                                          size_t max_writers) {
  const std::string name = fmt::format("aisp-kv-{}-{}", getpid(), NewCookie().ToHex());
  AISP_ASSIGN_OR_RETURN(UniqueFd listen, ListenUnix(name));
  AISP_ASSIGN_OR_RETURN(Waker waker, Waker::Create());
  return std::unique_ptr<PoolListener>(
      new PoolListener(std::move(listen), std::move(waker), offer, name, max_writers));
}

PoolListener::PoolListener(UniqueFd listen, Waker waker, const PoolOffer& offer,
                           const std::string& name, size_t max_writers)
    : listen_(std::move(listen)),
      waker_(std::move(waker)),
      offer_(offer),
      descriptor_(PoolDescriptor(offer.lane, name, offer.cookie)),
      max_writers_(max_writers),
      thread_("kv-listen", [this] { Run(); }) {}

PoolListener::~PoolListener() {
  {
    std::lock_guard lock(mutex_);
    stop_ = true;
  }
  waker_.Wake();
  thread_.Join();
}

Result<PeerWatch> PoolListener::WatchWriter(std::string_view token) {
  AISP_ASSIGN_OR_RETURN(const Hash128 wanted, ParseCookie(token));
  std::lock_guard lock(mutex_);
  for (const Writer& writer : writers_) {
    if (writer.watch != nullptr && writer.token == wanted) return writer.watch->Duplicate();
  }
  return NotFound("no writer of this pool has this token (any more)");
}

bool PoolListener::HasNotes() {
  if (boxes_.load(std::memory_order_relaxed) != boxes_seen_) {
    std::lock_guard lock(mutex_);
    boxes_seen_ = boxes_.load(std::memory_order_relaxed);
    boxes_read_.clear();
    for (const Writer& writer : writers_) {
      if (writer.notes != nullptr) boxes_read_.push_back({writer.token.ToHex(), writer.notes});
    }
  }
  return std::ranges::any_of(boxes_read_, [](const Box& box) { return box.notes->Filled(); });
}

bool PoolListener::TakeNote(std::string* token, std::string* note) {
  if (!HasNotes()) return false;
  // In turns, so that no writer keeps out the others.
  for (size_t i = 0; i < boxes_read_.size(); ++i) {
    const Box& box = boxes_read_[next_box_++ % boxes_read_.size()];
    if (!box.notes->Take(note)) continue;
    *token = box.token;
    return true;
  }
  return false;
}

int PoolListener::PollTimeoutMs(Instant now) const {
  Instant first = kNever;
  for (const Writer& writer : writers_) first = std::min(first, writer.hello_by);
  if (first == kNever) return -1;
  return static_cast<int>(std::max(0.0, ToMs(first - now)) + 1);
}

void PoolListener::Run() {
  std::vector<pollfd> fds;
  while (true) {
    int timeout = -1;
    {
      std::lock_guard lock(mutex_);
      if (stop_) return;
      fds.assign({{listen_.get(), POLLIN, 0}, {waker_.fd(), POLLIN, 0}});
      for (const Writer& writer : writers_) fds.push_back({writer.socket.get(), POLLIN, 0});
      timeout = PollTimeoutMs(clock_.Now());
    }
    // Out of descriptors: the pending connection would wake this thread in a busy loop.
    if (accept_paused_) {
      fds[0].events = 0;
      timeout = kAcceptPauseMs;
      accept_paused_ = false;
    }
    if (poll(fds.data(), fds.size(), timeout) < 0) continue;
    waker_.Drain();
    std::lock_guard lock(mutex_);
    const Instant now = clock_.Now();
    // fds[i + 2] is writers_[i] until Accept appends. Backwards, because closing one shifts later
    // ones.
    for (size_t i = fds.size() - 2; i > 0; --i) {
      Writer& writer = writers_[i - 1];
      const bool keep = fds[i + 1].revents == 0 ? now < writer.hello_by : Serve(writer);
      if (keep) continue;
      if (writer.notes != nullptr) boxes_.fetch_add(1, std::memory_order_relaxed);
      writers_.erase(writers_.begin() + static_cast<ptrdiff_t>(i - 1));
    }
    if (fds[0].revents != 0) Accept(now);
  }
}

void PoolListener::Accept(Instant now) {
  while (true) {
    UniqueFd socket(accept4(listen_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) {
      accept_paused_ = errno == EMFILE || errno == ENFILE || errno == ENOMEM;
      return;
    }
    if (const Status user = CheckPeerUser(socket.get()); !user) {
      LogWarning("a KV writer was refused", {{"reason", user.error().message}});
      continue;
    }
    if (Strangers() >= kMaxStrangers) CloseOldestStranger();
    writers_.push_back({std::move(socket), now + kHelloLimit, nullptr, {}, nullptr});
  }
}

size_t PoolListener::Strangers() const {
  return static_cast<size_t>(std::ranges::count_if(
      writers_, [](const Writer& writer) { return writer.hello_by != kNever; }));
}

// They are in order of arrival. It may have greeted meanwhile.
void PoolListener::CloseOldestStranger() {
  const auto oldest = std::ranges::find_if(
      writers_, [](const Writer& writer) { return writer.hello_by != kNever; });
  if (!Serve(*oldest) || oldest->hello_by != kNever) writers_.erase(oldest);
}

void PoolListener::Refuse(const Writer& writer, Code code) const {
  PoolReply refusal;
  refusal.code = static_cast<uint32_t>(code);
  static_cast<void>(SendReply(writer.socket.get(), refusal, -1, -1));
}

bool PoolListener::Serve(Writer& writer) {
  PoolHello hello;
  const ssize_t n = recv(writer.socket.get(), &hello, sizeof(hello), MSG_DONTWAIT);
  if (n < 0) return errno == EAGAIN || errno == EINTR;
  // A writer sends nothing after its hello: this is end of file, or garbage.
  if (n != static_cast<ssize_t>(sizeof(hello)) || writer.hello_by == kNever ||
      hello.magic != kPoolMagic)
    return false;
  if (hello.cookie != offer_.cookie) {
    Refuse(writer, Code::kPermissionDenied);
    return false;
  }
  if (writers_.size() - Strangers() >= max_writers_) {
    LogWarning("a KV writer was refused: too many are connected", {{"limit", max_writers_}});
    Refuse(writer, Code::kResourceExhausted);
    return false;
  }
  Result<PeerWatch> watch = PeerWatch::OpenSocketPeer(writer.socket.get());
  if (!watch && !offer_.processes_only) watch = PeerWatch::OfConnection(writer.socket.get());
  if (!watch) {
    LogWarning("a KV writer is refused: its death could not be proven",
               {{"lane", offer_.lane}, {"reason", watch.error().message}});
    Refuse(writer, Code::kFailedPrecondition);
    return false;
  }
  PoolReply reply = offer_.reply;
  writer.watch = std::make_unique<PeerWatch>(std::move(*watch));
  writer.token = reply.token = NewCookie();
  writer.hello_by = kNever;
  int notes_fd = -1;
  if (Result<NoteBox> box = offer_.notes ? NoteBox::Create() : NotFound("not offered"); box) {
    writer.notes = std::make_shared<NoteBox>(std::move(*box));
    notes_fd = writer.notes->fd();
    reply.notes = 1;
    boxes_.fetch_add(1, std::memory_order_relaxed);
  }
  return SendReply(writer.socket.get(), reply, offer_.pool_fd, offer_.scratch_fd, notes_fd)
      .has_value();
}

}  // namespace aisp
