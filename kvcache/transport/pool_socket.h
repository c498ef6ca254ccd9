// The socket by which a writer obtains a pool of this host: addresses, messages, file descriptors.
// Used by transports that map a peer's memory (shm, cuda_ipc).
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/hash.h"
#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

inline constexpr uint64_t kPoolMagic = 0x33304c4f4f504941;  // "AIPOOL03"

// Writer to owner, once.
struct PoolHello {
  uint64_t magic = kPoolMagic;
  Hash128 cookie;
};
// Device memory in the driver's form (MemoryHandle without the descriptor).
struct PoolHandle {
  char device_kind[16] = "";
  uint64_t bytes = 0;
  std::array<std::byte, 64> opaque{};
};
// Owner to writer, once. With code 0: the pool and a scratch area that starts with the cookie, as
// two accompanying file descriptors (host memory), as handles (device memory), or as both.
struct PoolReply {
  uint64_t magic = kPoolMagic;
  uint32_t code = 0;
  uint32_t notes = 0;  // 1: one more descriptor accompanies it, of a NoteBox
  uint64_t pool_bytes = 0;
  Hash128 token;  // of this connection: the writer passes it to the owner's role, which watches it
  PoolHandle pool;
  PoolHandle scratch;
};

Error SocketError(std::string_view what);  // from errno

// Message-preserving Unix sockets named in the abstract namespace.
Result<UniqueFd> ListenUnix(std::string_view name);
// A blocking socket with `timeout` for connecting, sending and receiving.
Result<UniqueFd> ConnectUnix(std::string_view name, Duration timeout);
// PERMISSION_DENIED unless the process at the other end has our user id.
Status CheckPeerUser(int socket);

// Descriptors of -1 are not sent. With notes_fd, reply.notes is 1.
Status SendReply(int socket, const PoolReply& reply, int pool_fd, int scratch_fd,
                 int notes_fd = -1);
struct ReceivedReply {
  PoolReply reply;
  UniqueFd pool;
  UniqueFd scratch;
  UniqueFd notes;
};
// UNAVAILABLE: the owner closed the connection; FAILED_PRECONDITION: another protocol version.
Result<ReceivedReply> ReceiveReply(int socket);

// A pool's descriptor: "LANE SOCKET COOKIE".
std::string PoolDescriptor(std::string_view lane, std::string_view socket, const Hash128& cookie);

// A pool obtained from its owner. The owner keeps its end of `socket` open while it serves the
// pool.
struct GrantedPool {
  UniqueFd socket;
  Hash128 cookie;
  ReceivedReply received;
};
// INVALID_ARGUMENT: not a descriptor of this transport. PERMISSION_DENIED: another user or
// incarnation. FAILED_PRECONDITION: the owner could not detect this process's death.
// RESOURCE_EXHAUSTED: too many writers.
Result<GrantedPool> AskForPool(std::string_view lane, std::string_view descriptor,
                               Duration timeout);
// UNAVAILABLE: the owner is gone. Does not change the socket: any thread.
Status OwnerAlive(int socket);

}  // namespace aisp
