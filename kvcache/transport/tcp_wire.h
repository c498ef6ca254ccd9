// Messages of a tcp transport's connection, both ways. Little-endian, packed by construction.
//
//   - writer: TcpHello, then for each write: TcpWriteHeader, TcpCopy[copies], payload (the copies'
//     bytes in order), with kTcpChecksumBehind its checksum
//   - owner: TcpHelloReply, then for each write: TcpAck, in the order of the writes
//
// The owner treats each part of a write as a write.
#pragma once

#include <bit>
#include <cstdint>
#include <span>

#include "common/hash.h"

namespace aisp {

static_assert(std::endian::native == std::endian::little,
              "the tcp transport sends integers as they lie in memory");

inline constexpr uint64_t kTcpMagic = 0x31305043544b5641;  // "AVKTCP01"
inline constexpr uint32_t kTcpWriteMagic = 0x57564b41;     // "AKVW"
inline constexpr uint32_t kTcpAckMagic = 0x41564b41;       // "AKVA"
// A header beyond these limits is garbage; the writer never sends one.
inline constexpr uint32_t kTcpMaxCopies = 65536;
inline constexpr uint64_t kTcpMaxPayload = uint64_t{1} << 34;
// A longer write from host memory is sent as several messages of its id: each is hashed, sent,
// received and checked while in a CPU cache, and both sides work in parallel.
inline constexpr uint64_t kTcpPartBytes = uint64_t{512} << 10;

struct TcpHello {
  uint64_t magic = kTcpMagic;
  Hash128 cookie;
};
static_assert(sizeof(TcpHello) == 24);

struct TcpHelloReply {
  uint64_t magic = kTcpMagic;
  uint32_t code = 0;  // Code
  // Optional flags that this owner supports, in 8 bits; above them its WithinMachineMark.
  uint32_t takes = 0;
  uint64_t pool_bytes = 0;
};
static_assert(sizeof(TcpHelloReply) == 24);

inline constexpr int kTcpMarkShift = 8;

inline constexpr uint32_t kTcpChecksummed = 1;  // `checksum` is FoldChecksum over the copies
inline constexpr uint32_t kTcpProbe = 2;        // the payload is dropped: a measurement
// Only to owners that support it: the checksum is in 8 bytes after the payload instead of in the
// header, so that bytes are hashed while still cached from sending. Not for probes.
inline constexpr uint32_t kTcpChecksumBehind = 4;

struct TcpWriteHeader {
  uint32_t magic = kTcpWriteMagic;
  uint32_t flags = 0;
  uint64_t id = 0;
  uint64_t epoch = 0;
  uint64_t payload_bytes = 0;
  uint64_t checksum = 0;
  uint32_t copies = 0;
  // Payload bytes of the same write in later messages (capped at 32 bits); at least so many follow
  // unless a part is refused. The owner uses it only to choose its wakeups.
  uint32_t more = 0;
};
static_assert(sizeof(TcpWriteHeader) == 48);

struct TcpCopy {
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
static_assert(sizeof(TcpCopy) == 16);

struct TcpAck {
  uint32_t magic = kTcpAckMagic;
  uint32_t code = 0;  // Code
  uint64_t id = 0;
};
static_assert(sizeof(TcpAck) == 16);

// Of a payload, copy by copy, starting from 0.
inline uint64_t FoldChecksum(uint64_t sum, std::span<const std::byte> bytes) {
  const std::string_view text(reinterpret_cast<const char*>(bytes.data()), bytes.size());
  return std::rotl(sum, 17) * 0x9e3779b97f4a7c15 + Hash64(text);
}

}  // namespace aisp
