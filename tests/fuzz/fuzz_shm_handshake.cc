// Both ends of the handshake that hands out a pool's memory, each with a peer that sends anything:
// bytes of any length, descriptors of any kind and number, pools of wrong sizes and seals. A
// stranger gets no memory, an honest writer is served afterwards, no received descriptor leaks, and
// a pool that a writer accepted is writable to its last byte.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/check.h"
#include "common/strings.h"
#include "common/threads.h"
#include "kvcache/transport/pool_memory.h"
#include "kvcache/transport/pool_socket.h"
#include "kvcache/transport/shm.h"
#include "tests/fuzz/await_readable.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/fuzz_target.h"

namespace aisp {
namespace {

constexpr Duration kPatience = std::chrono::seconds(10);
constexpr int kPatienceMs = 10'000;
constexpr size_t kPool = 64 << 10, kScratch = 1 << 20;
constexpr size_t kMostSent = 8;  // descriptors in one message

struct Honest {
  SharedPool pool = std::move(*SharedPool::Create(kPool));
  ShmTransport owner{ShmTransport::Options{}};
  std::string descriptor;
  Honest() {
    AISP_CHECK(owner.Register(pool.region()));
    descriptor = *owner.Descriptor();
  }
};

// Every message carries the end of a pipe, which shows when the last copy of it is closed.
struct Tracer {
  UniqueFd read, write;
  Tracer() {
    int ends[2];
    AISP_CHECK(pipe2(ends, O_CLOEXEC) == 0);
    read.Reset(ends[0]);
    write.Reset(ends[1]);
  }
  void ExpectGone() {
    write.Reset(-1);
    AISP_CHECK(AwaitReadable(read.get(), kPatienceMs));
    char byte = 0;
    AISP_CHECK(::read(read.get(), &byte, 1) == 0);
  }
};

UniqueFd Memory(ByteSource& bytes, size_t size, const Hash128& cookie) {
  const bool sealable = bytes.Below(8) != 7;
  UniqueFd fd(memfd_create("fuzz", MFD_CLOEXEC | (sealable ? MFD_ALLOW_SEALING : 0)));
  AISP_CHECK(static_cast<bool>(fd));
  AISP_CHECK(pwrite(fd.get(), &cookie, sizeof(cookie), 0) == ssize_t{sizeof(cookie)});
  switch (bytes.Below(8)) {
    case 5:
      size = bytes.Below(256);
      break;
    case 6:
      size -= 1;
      break;
    case 7:
      size = size_t{1} << 40;  // sparse
      break;
    default:
      break;
  }
  AISP_CHECK(ftruncate(fd.get(), static_cast<off_t>(size)) == 0);
  int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;
  if (bytes.Below(4) == 3) seals = bytes.Byte() & 0x1f;
  static_cast<void>(fcntl(fd.get(), F_ADD_SEALS, seals));
  return fd;
}

// Descriptors that may be sent: -1 is none.
UniqueFd Anything(ByteSource& bytes, const Tracer& tracer, size_t size, const Hash128& cookie) {
  switch (bytes.Below(8)) {
    case 5:
      return UniqueFd(fcntl(tracer.write.get(), F_DUPFD_CLOEXEC, 0));
    case 6:
      return UniqueFd(eventfd(0, EFD_CLOEXEC));
    case 7:
      return UniqueFd(open(bytes.Flip() ? "/dev/zero" : "/", O_RDONLY | O_CLOEXEC));
    default:
      return Memory(bytes, size, cookie);
  }
}

void SendWith(int socket, std::string_view data, const std::vector<UniqueFd>& fds) {
  iovec part{const_cast<char*>(data.data()), data.size()};
  alignas(cmsghdr) char control[CMSG_SPACE(kMostSent * sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!fds.empty()) {
    message.msg_control = control;
    message.msg_controllen = CMSG_SPACE(fds.size() * sizeof(int));
    cmsghdr* header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(fds.size() * sizeof(int));
    for (size_t i = 0; i < fds.size(); ++i) {
      const int fd = fds[i].get();
      std::memcpy(CMSG_DATA(header) + i * sizeof(int), &fd, sizeof(fd));
    }
  }
  // The other end may have closed the connection.
  static_cast<void>(sendmsg(socket, &message, MSG_NOSIGNAL | MSG_DONTWAIT));
}

template <typename T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof(value)};
}

// Cut, extended or changed.
std::string Mutated(ByteSource& bytes, std::string message) {
  switch (bytes.Below(8)) {
    case 4:
      message.resize(bytes.Below(message.size() + 1));
      break;
    case 5:
      message += bytes.Text(64);
      break;
    case 6:
      message[bytes.Below(message.size())] = static_cast<char>(bytes.Byte());
      break;
    case 7:
      message = bytes.Text(255);
      break;
    default:
      break;
  }
  return message;
}

// A stranger at the socket of an honest owner.
void Stranger(ByteSource& bytes, Honest& honest) {
  const std::vector<std::string_view> parts = Split(honest.descriptor, ' ');
  auto socket = ConnectUnix(parts[1], kPatience);
  AISP_CHECK(socket);
  Tracer tracer;
  for (size_t n = 1 + bytes.Below(4); n > 0; --n) {
    PoolHello hello;  // without the cookie
    if (bytes.Flip()) hello.cookie = {bytes.Number(), bytes.Number()};
    std::vector<UniqueFd> fds;
    fds.emplace_back(fcntl(tracer.write.get(), F_DUPFD_CLOEXEC, 0));
    for (size_t more = bytes.Below(kMostSent); more > 0; --more)
      fds.emplace_back(fcntl(tracer.write.get(), F_DUPFD_CLOEXEC, 0));
    SendWith(socket->get(), Mutated(bytes, Bytes(hello)), fds);
  }
  if (bytes.Flip()) shutdown(socket->get(), SHUT_WR);
  // Every first message is nonsense or lacks the cookie: it is refused without memory, or the
  // connection is closed.
  AISP_CHECK(AwaitReadable(socket->get(), kPatienceMs));
  const auto reply = ReceiveReply(socket->get());
  AISP_CHECK(!reply || (reply->reply.code != 0 && !reply->pool && !reply->scratch));
  socket->Reset(-1);
  tracer.ExpectGone();
}

struct Answer {
  std::string bytes;
  std::vector<UniqueFd> fds;
  bool hang_up = false;
};

// A writer that connects to an owner which answers with anything.
void HostileOwner(ByteSource& bytes) {
  static const UniqueFd& listener =
      *new UniqueFd(std::move(*ListenUnix("aisp-fuzz-shm-" + std::to_string(getpid()))));
  const Hash128 cookie{1, 2};
  Tracer tracer;
  Answer answer;
  PoolReply reply;
  reply.pool_bytes = bytes.Below(4) == 3 ? bytes.Number() : kPool;
  if (bytes.Below(8) == 7) reply.code = bytes.Number32();
  answer.bytes = Mutated(bytes, Bytes(reply));
  for (size_t n = bytes.Below(8) == 7 ? bytes.Below(kMostSent) : 2; n > 0; --n) {
    answer.fds.push_back(Anything(bytes, tracer, answer.fds.empty() ? kPool : kScratch,
                                  bytes.Below(8) == 7 ? Hash128{} : cookie));
  }
  answer.hang_up = bytes.Flip();
  {
    UniqueFd peer;
    Thread owner("hostile", [&] {
      if (!AwaitReadable(listener.get(), kPatienceMs)) return;
      peer.Reset(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
      SendWith(peer.get(), answer.bytes, answer.fds);
      answer.fds.clear();
      if (answer.hang_up) peer.Reset(-1);
    });
    ShmTransport writer{ShmTransport::Options{}};
    auto own = std::move(*SharedPool::Create(kPool));
    AISP_CHECK(writer.Register(own.region()));
    const std::string descriptor =
        PoolDescriptor("shm1", "aisp-fuzz-shm-" + std::to_string(getpid()), cookie);
    auto reached = writer.Reach(descriptor, kPatience);
    owner.Join();
    if (reached) {
      const KvPeerId id = writer.Add(std::move(*reached));
      const uint64_t last = reply.pool_bytes - std::min<uint64_t>(reply.pool_bytes, 64);
      const BlockCopy copies[] = {{0, 0, std::min<uint64_t>(reply.pool_bytes, 64)},
                                  {0, last, std::min<uint64_t>(reply.pool_bytes, 64)}};
      static_cast<void>(writer.Write(id, copies, Epoch(1)));
      writer.Disconnect(id);
    }
  }
  tracer.ExpectGone();
}

}  // namespace

void FuzzOne(std::string_view input) {
  static Honest& honest = *new Honest;
  ByteSource bytes(input);
  while (!bytes.spent()) {
    bytes.Flip() ? Stranger(bytes, honest) : HostileOwner(bytes);
  }
  const auto granted = AskForPool("shm1", honest.descriptor, kPatience);
  AISP_CHECK(granted && granted->received.pool && granted->received.scratch);
}

}  // namespace aisp
