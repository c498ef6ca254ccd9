// The socket over which a writer gets a pool's memfd: addresses, messages, file descriptors. Used by shm alone.
#pragma once

#include <sys/types.h>

#include <array>
#include <cstdint>
#include <string_view>

#include "common/clock.h"
#include "common/hash.h"
#include "common/result.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

inline constexpr size_t kShmScratchBytes = 1 << 20;
inline constexpr uint64_t kShmMagic = 0x31304d4853504941;  // "AIPSHM01"

// Writer to owner, once.
struct ShmHello {
  uint64_t magic = kShmMagic;
  Hash128 cookie;
};
// Owner to writer, once; with code 0 two memfds come along: the pool and a scratch area that begins with the cookie.
struct ShmReply {
  uint64_t magic = kShmMagic;
  uint32_t code = 0;
  uint32_t reserved = 0;
  uint64_t pool_bytes = 0;
};

Error SocketError(std::string_view what);  // from errno

// Message-preserving Unix sockets with names in the abstract namespace.
Result<UniqueFd> ListenUnix(std::string_view name);
// Blocking socket with `timeout` on connecting, sending and receiving.
Result<UniqueFd> ConnectUnix(std::string_view name, Duration timeout);
// PERMISSION_DENIED unless the process at the other end runs under our user id.
Status CheckPeerUser(int socket);

Status SendReply(int socket, const ShmReply& reply, int pool_fd, int scratch_fd);
struct ReceivedReply {
  ShmReply reply;
  UniqueFd pool;
  UniqueFd scratch;
};
Result<ReceivedReply> ReceiveReply(int socket);

// Maps `bytes` of a memfd, shared and writable; OUT_OF_RANGE when the file is smaller.
Result<std::byte*> MapShared(int fd, size_t bytes);

}  // namespace aisp
