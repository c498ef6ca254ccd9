#include "kvcache/transport/tcp_writer.h"

#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <utility>

#include "kvcache/transport/tcp_peer.h"

namespace aisp {
namespace {
constexpr uint64_t kWakerTag = 0;  // peers count from 1
}

void TcpWriter::Waiter::Done(Status s) {
  std::lock_guard lock(mutex);
  status = std::move(s);
  done = true;
  done_cv.notify_all();
}

Result<std::unique_ptr<TcpWriter>> TcpWriter::Start(const KvRegion& source,
                                                    CompletionQueue* completions,
                                                    const Options& options) {
  AISP_ASSIGN_OR_RETURN(Waker waker, Waker::Create());
  UniqueFd epoll(epoll_create1(EPOLL_CLOEXEC));
  epoll_event event{.events = EPOLLIN, .data = {.u64 = kWakerTag}};
  if (!epoll || epoll_ctl(epoll.get(), EPOLL_CTL_ADD, waker.fd(), &event) != 0) {
    return ResourceExhausted("epoll; raise the limit on open files (ulimit -n)");
  }
  return std::unique_ptr<TcpWriter>(
      new TcpWriter(source, completions, options, std::move(epoll), std::move(waker)));
}

TcpWriter::TcpWriter(const KvRegion& source, CompletionQueue* completions, const Options& options,
                     UniqueFd epoll, Waker waker)
    : source_(source),
      completions_(completions),
      options_(options),
      epoll_(std::move(epoll)),
      waker_(std::move(waker)),
      thread_("kv-tcp-writer", [this] { Run(); }) {}

TcpWriter::~TcpWriter() {
  stop_ = true;
  waker_.Wake();
  thread_.Join();
}

// ---- Called by the engine thread ----

void TcpWriter::Post(Command command) {
  bool first = false;
  {
    std::lock_guard lock(mutex_);
    first = commands_.empty();
    commands_.push_back(std::move(command));
  }
  if (first) waker_.Wake();  // the thread takes all commands at once
}

void TcpWriter::Add(KvPeerId peer, UniqueFd socket, uint32_t takes) {
  auto added = std::make_shared<Peer>(this, peer, std::move(socket), takes);
  peers_.emplace(peer, added);
  Post({peer, AddPeer{std::move(added)}});
}

void TcpWriter::Remove(KvPeerId peer, const Error& why) {
  peers_.erase(peer);
  auto waiter = std::make_shared<Waiter>();
  Post({peer, RemovePeer{why, waiter}});
  std::unique_lock lock(waiter->mutex);
  waiter->done_cv.wait(lock, [&] { return waiter->done; });
}

void TcpWriter::Write(WriteId id, KvPeerId peer, Epoch epoch, std::span<const BlockCopy> copies) {
  Post({peer, WriteJob{id, epoch, {copies.begin(), copies.end()}}});
}

void TcpWriter::Cancel(KvPeerId peer, Epoch epoch) { Post({peer, CancelEpoch{epoch}}); }

Status TcpWriter::Alive(KvPeerId peer) const {
  const auto it = peers_.find(peer);
  if (it == peers_.end()) return NotFound("this tcp peer is not connected");
  return it->second->Alive();
}

// ---- The thread ----

void TcpWriter::Run() {
  std::array<epoll_event, 64> events;
  std::vector<Command> commands;
  while (!stop_) {
    const Instant deadline = NextDeadline();
    const int timeout_ms = deadline == kNever
                               ? -1
                               : static_cast<int>(std::max(0.0, ToMs(deadline - clock_.Now())) + 1);
    const int n =
        epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), timeout_ms);
    for (int i = 0; i < n; ++i) {
      const uint64_t tag = events[static_cast<size_t>(i)].data.u64;
      if (tag == kWakerTag) {
        waker_.Drain();
      } else if (const auto it = served_.find(KvPeerId(tag)); it != served_.end()) {
        it->second->Serve();
      }
    }
    {
      std::lock_guard lock(mutex_);
      commands.swap(commands_);
    }
    for (Command& command : commands) Execute(command);
    for (Command& command : commands) {
      if (const auto it = served_.find(command.peer); it != served_.end()) it->second->Serve();
    }
    commands.clear();
    const Instant now = clock_.Now();
    for (const auto& [id, peer] : served_) peer->CheckDeadline(now);
  }
}

Instant TcpWriter::NextDeadline() const {
  Instant first = kNever;
  for (const auto& [id, peer] : served_) first = std::min(first, peer->deadline());
  return first;
}

void TcpWriter::Execute(Command& command) {
  if (auto* add = std::get_if<AddPeer>(&command.what)) {
    served_.emplace(command.peer, add->peer);
    add->peer->Watch();
    return;
  }
  const auto it = served_.find(command.peer);
  if (auto* remove = std::get_if<RemovePeer>(&command.what)) {
    if (it != served_.end()) {
      it->second->Fail(remove->why);
      served_.erase(it);
    }
    remove->waiter->Done({});
  } else if (auto* cancel = std::get_if<CancelEpoch>(&command.what)) {
    if (it != served_.end()) it->second->Cancel(cancel->epoch);
  } else if (auto* job = std::get_if<WriteJob>(&command.what)) {
    // Only connected peers get writes, and Remove comes later in the queue.
    if (it != served_.end()) it->second->Enqueue(std::move(*job));
  }
}

}  // namespace aisp
