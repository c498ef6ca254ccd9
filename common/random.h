// Counter-based random numbers: a draw is a function of its key only, not of earlier draws. So a
// seeded request gives the same tokens alone, batched, preempted or moved to another worker.
// Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3", SC 2011. Pure
// functions: any thread.
#pragma once

#include <array>
#include <cstdint>

namespace aisp {

// Ten Philox rounds over a 128-bit counter with a 64-bit key.
std::array<uint32_t, 4> Philox4x32(uint64_t key, std::array<uint32_t, 4> counter);

// Standard Gumbel noise -log(-log(u)) for one candidate token, with u = (word >> 9 + 0.5) * 2^-23
// in (0,1). `word` is element token % 4 of Philox with key = seed and counter = {token / 4,
// position, choice, 0}. `position` is the sequence index (prompt included) of the token being
// drawn.
float GumbelNoise(uint64_t seed, uint32_t choice, uint32_t position, uint32_t token);

// SplitMix64, for ids, tie-breaks and simulation. Not thread-safe.
class SplitMix64 {
 public:
  explicit SplitMix64(uint64_t seed) : state_(seed) {}
  uint64_t Next();
  // Uniform in [0, n); n > 0.
  uint64_t Below(uint64_t n) {
    return static_cast<uint64_t>((static_cast<unsigned __int128>(Next()) * n) >> 64);
  }
  // Uniform in [0, 1).
  double Uniform() { return static_cast<double>(Next() >> 11) * 0x1.0p-53; }

 private:
  uint64_t state_;
};

}  // namespace aisp
