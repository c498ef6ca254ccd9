#include "net/dialled_bytes.h"

#include <fcntl.h>
#include <grpc/support/sync.h>
// Not <netinet/tcp.h>, as in net/connection_bytes.cc.
#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <condition_variable>
#include <mutex>
#include <utility>
#include <vector>

#include "common/log.h"
#include "net/unique_descriptor.h"

namespace aisp {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(100);

// TCP states by the kernel's numbers (include/net/tcp_states.h), which linux/tcp.h lacks.
enum TcpState : uint8_t { kEstablished = 1, kSynSent = 2, kClose = 7, kCloseWait = 8 };

TcpState StateOf(int fd) {
  tcp_info info{};
  socklen_t size = sizeof(info);
  if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &size) != 0) return kClose;
  return static_cast<TcpState>(info.tcpi_state);
}

}  // namespace

// The duplicated descriptors, and the body of the thread that checks them.
class DialledBytes::Sockets {
 public:
  explicit Sockets(std::shared_ptr<ConnectionBytes> bytes) : bytes_(std::move(bytes)) {}

  void Open(const std::string& key) { bytes_->Open(key); }
  bool Add(const std::string& key, int fd) {
    UniqueDescriptor watch(fcntl(fd, F_DUPFD_CLOEXEC, 0));
    if (watch.get() < 0) return false;
    const std::lock_guard lock(mutex_);
    if (stop_) return true;
    bytes_->Add(key, watch.get());
    sockets_.push_back({key, std::move(watch), false});
    changed_.notify_all();
    return true;
  }
  void Close(const std::string& key) {
    const std::lock_guard lock(mutex_);
    bytes_->Remove(key);
    std::erase_if(sockets_, [&](const Socket& socket) { return socket.key == key; });
  }
  void Soon(std::function<void()> fn) {
    const std::lock_guard lock(mutex_);
    if (stop_) return;
    soon_.push_back(std::move(fn));
    changed_.notify_all();
  }
  void Run() {
    std::unique_lock lock(mutex_);
    while (!stop_) {
      if (sockets_.empty() && soon_.empty()) {
        changed_.wait(lock);
        continue;
      }
      const std::vector<std::function<void()>> due = std::exchange(soon_, {});
      changed_.wait_for(lock, kLook, [this] { return stop_; });
      if (stop_) return;
      Look();
      lock.unlock();
      for (const auto& fn : due) fn();
      lock.lock();
    }
  }
  void Stop() {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    for (const Socket& socket : sockets_) bytes_->Remove(socket.key);
    sockets_.clear();
    soon_.clear();
    changed_.notify_all();
  }

 private:
  struct Socket {
    std::string key;
    UniqueDescriptor watch;
    bool dialled;  // has left the closed state in which every socket begins
  };

  void Look() {
    if (const size_t ended = bytes_->Enforce(); ended > 0) {
      LogWarning("connections were closed: the peer sent a head without end",
                 {{"connections", ended}, {"bytes", ConnectionBytes::kSlack}});
    }
    std::erase_if(sockets_, [this](Socket& socket) {
      const TcpState state = StateOf(socket.watch.get());
      const bool lives = state == kEstablished || state == kSynSent || state == kCloseWait;
      socket.dialled |= state != kClose;
      if (lives || !socket.dialled) return false;
      bytes_->Remove(socket.key, socket.watch.get());
      return true;
    });
  }

  const std::shared_ptr<ConnectionBytes> bytes_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<Socket> sockets_;
  std::vector<std::function<void()>> soon_;
  bool stop_ = false;
};

// The layout of gRPC's grpc_socket_mutator, which its public headers only declare. It has been the
// same since gRPC 1.0 (src/core/lib/iomgr/socket_mutator.h), except for the table's last entry,
// which was added in 1.38 and may be null.
class DialledBytes::Mutator {
 public:
  // Owned by gRPC through its reference count.
  Mutator(std::shared_ptr<Sockets> sockets, std::string key)
      : sockets_(std::move(sockets)), key_(std::move(key)) {
    static const Table kTable{OnSocket, Compare, Destroy, nullptr};
    head_.table = &kTable;
    gpr_ref_init(&head_.references, 1);
  }
  grpc_socket_mutator* AsGrpc() { return reinterpret_cast<grpc_socket_mutator*>(&head_); }

 private:
  struct Table {
    bool (*on_socket)(int fd, grpc_socket_mutator* self);
    int (*compare)(grpc_socket_mutator* a, grpc_socket_mutator* b);
    void (*destroy)(grpc_socket_mutator* self);
    bool (*on_socket_of_use)(const void* socket, grpc_socket_mutator* self);
  };
  struct Head {
    const Table* table;
    gpr_refcount references;
  };

  static Mutator* Of(grpc_socket_mutator* self) { return reinterpret_cast<Mutator*>(self); }
  static bool OnSocket(int fd, grpc_socket_mutator* self) {
    return Of(self)->sockets_->Add(Of(self)->key_, fd);
  }
  static int Compare(grpc_socket_mutator* a, grpc_socket_mutator* b) {
    return a < b ? -1 : static_cast<int>(b < a);
  }
  static void Destroy(grpc_socket_mutator* self) {
    Of(self)->sockets_->Close(Of(self)->key_);
    delete Of(self);
  }

  Head head_;  // first member: gRPC's pointer to this object
  const std::shared_ptr<Sockets> sockets_;
  const std::string key_;
};

DialledBytes::DialledBytes(std::shared_ptr<ConnectionBytes> bytes)
    : sockets_(std::make_shared<Sockets>(std::move(bytes))),
      thread_("link-bytes", [sockets = sockets_] { sockets->Run(); }) {}

DialledBytes::~DialledBytes() { sockets_->Stop(); }

std::function<void(std::function<void()>)> DialledBytes::Soon() const {
  return [sockets = sockets_](std::function<void()> fn) { sockets->Soon(std::move(fn)); };
}

void DialledBytes::Bound(size_t max_message_bytes, grpc::ChannelArguments* arguments) {
  arguments->SetMaxReceiveMessageSize(static_cast<int>(max_message_bytes));
  arguments->SetInt(GRPC_COMPRESSION_CHANNEL_ENABLED_ALGORITHMS_BITSET, 1 << GRPC_COMPRESS_NONE);
  arguments->SetInt(GRPC_ARG_ENABLE_PER_MESSAGE_DECOMPRESSION, 0);
  arguments->SetInt(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  arguments->SetInt(GRPC_ARG_HTTP2_STREAM_LOOKAHEAD_BYTES, 1 << 20);
}

void DialledBytes::Watch(const std::string& key, grpc::ChannelArguments* arguments) {
  sockets_->Open(key);
  arguments->SetSocketMutator((new Mutator(sockets_, key))->AsGrpc());
}

}  // namespace aisp
