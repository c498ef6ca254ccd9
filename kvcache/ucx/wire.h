// What runs over a ucx transport's connection: active messages, each a fixed header, and for pieces
// and probes a payload by rendezvous. Little-endian, packed by construction.
//
//   writer: Hello, then for each write its Pieces, in any order
//   owner:  HelloReply, then for each write one Ack, once all its pieces have landed or were
//   refused
#pragma once

#include <bit>
#include <cstdint>

#include "common/hash.h"

namespace aisp::ucx {

static_assert(std::endian::native == std::endian::little,
              "the ucx transport sends integers as they lie in memory");

inline constexpr uint64_t kMagic = 0x3130505843554b41;  // "AKUCXP01"

// The ids of active messages.
enum MessageId : unsigned { kHello = 1, kHelloReply, kPiece, kAck, kProbe, kProbeReply };

struct Hello {
  uint64_t magic = kMagic;
  Hash128 cookie;
};
static_assert(sizeof(Hello) == 24);

struct HelloReply {
  uint64_t magic = kMagic;
  uint32_t code = 0;  // Code
  uint32_t reserved = 0;
  uint64_t pool_bytes = 0;
};
static_assert(sizeof(HelloReply) == 24);

// One contiguous range of a write; its payload is as long as `bytes`.
struct Piece {
  uint64_t write = 0;
  uint64_t epoch = 0;
  uint64_t offset = 0;  // in the owner's pool
  uint64_t bytes = 0;
  uint64_t checksum = 0;  // XXH3 of the payload, where `checksummed`
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

// Its payload goes nowhere: a measurement.
struct Probe {
  uint64_t bytes = 0;
};

struct ProbeReply {
  uint64_t bytes = 0;
};

// A header that claims more is garbage; the writer makes none.
inline constexpr uint64_t kMostPieceBytes = uint64_t{16} << 20;
inline constexpr uint32_t kMostPieces = 65536;
inline constexpr uint64_t kMostProbeBytes = uint64_t{1} << 20;
// Of one connection: what the writer keeps under way, and more than it ever does.
inline constexpr uint32_t kPiecesUnderWay = 32;
inline constexpr uint32_t kMostPiecesUnderWay = 4 * kPiecesUnderWay;

}  // namespace aisp::ucx
