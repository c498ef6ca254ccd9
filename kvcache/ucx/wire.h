// Messages of a ucx transport's connection: active messages with a fixed header; pieces and probes
// carry a payload by rendezvous. Little-endian, packed by construction.
//
//   - writer: Hello, then for each write its Pieces, in any order
//   - owner: HelloReply, then for each write one Ack, once all its pieces have landed or were
//     refused
//
// Between processes of one host, the writer may send after HelloReply where its pool can be mapped
// (Memory). Once the owner has mapped it (MemoryReply), writes are sent as Batches of ranges
// without a payload: the owner copies them from the mapping and answers each in order (Landed).
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>

#include "common/hash.h"

namespace aisp::ucx {

static_assert(std::endian::native == std::endian::little,
              "the ucx transport sends integers as they lie in memory");

inline constexpr uint64_t kMagic = 0x3130505843554b41;  // "AKUCXP01"

// The ids of active messages.
enum MessageId : unsigned {
  kHello = 1,
  kHelloReply,
  kPiece,
  kAck,
  kProbe,
  kProbeReply,
  kMemory,
  kMemoryReply,
  kBatch,
  kLanded
};

// The longest header, and the longest payload sent inline with one.
inline constexpr size_t kMostHeaderBytes = 128;

struct Hello {
  uint64_t magic = kMagic;
  Hash128 cookie;
};
static_assert(sizeof(Hello) == 24);

struct HelloReply {
  uint64_t magic = kMagic;
  uint32_t code = 0;  // Code
  uint32_t features = 0;
  uint64_t pool_bytes = 0;
};
static_assert(sizeof(HelloReply) == 24);
// HelloReply.features: the owner supports Memory. Older owners send 0.
inline constexpr uint32_t kTakesMemory = 1;

// One contiguous range of a write; its payload has `bytes` bytes.
struct Piece {
  uint64_t write = 0;
  uint64_t epoch = 0;
  uint64_t offset = 0;  // in the owner's pool
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3 of the payload, if `checksummed`
  uint32_t pieces = 0;    // of the write
  uint32_t checksummed = 0;
};
static_assert(sizeof(Piece) == 48);

struct Ack {
  uint64_t write = 0;
  uint32_t code = 0;  // Code
  uint32_t reserved = 0;
};
static_assert(sizeof(Ack) == 16);

// Its payload is dropped: a measurement.
struct Probe {
  uint64_t bytes = 0;
};

struct ProbeReply {
  uint64_t bytes = 0;
};

// How to obtain the writer's pool: a descriptor for AskForPool, ended by a zero byte.
struct Memory {
  std::array<char, 112> descriptor{};
};
static_assert(sizeof(Memory) <= kMostHeaderBytes);

struct MemoryReply {
  uint32_t code = 0;  // Code; 0: the owner has mapped it
  uint32_t reserved = 0;
};

// Ranges of one write; the payload is `count` of Range.
struct Batch {
  uint64_t write = 0;
  uint64_t epoch = 0;
  uint32_t count = 0;
  uint16_t checksummed = 0;
  uint16_t probe = 0;  // dropped, as in Probe
};
static_assert(sizeof(Batch) == 24);

struct Range {
  uint64_t source = 0;  // in the writer's pool
  uint64_t offset = 0;  // in the owner's pool
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // as in Piece
};
static_assert(sizeof(Range) == 32);

struct Landed {
  uint64_t write = 0;
  uint32_t count = 0;
  uint32_t code = 0;  // Code: of the first range that did not land
};
static_assert(sizeof(Landed) == 16);

// A header beyond these limits is garbage; the writer never sends one.
inline constexpr uint64_t kMostPieceBytes = uint64_t{16} << 20;
inline constexpr uint32_t kMostPieces = 65536;
inline constexpr uint64_t kMostProbeBytes = uint64_t{1} << 20;
// Per connection: the writer's target in flight, and a limit that it never reaches.
inline constexpr uint32_t kPiecesUnderWay = 32;
inline constexpr uint32_t kMostPiecesUnderWay = 4 * kPiecesUnderWay;
// Per batch, so that the owner's thread is soon free again; and a writer's batches in flight.
inline constexpr uint64_t kMostBatchBytes = uint64_t{2} << 20;
inline constexpr uint32_t kMostRanges = 64;
inline constexpr uint64_t kBatchBytesUnderWay = 8 * kMostBatchBytes;

}  // namespace aisp::ucx
