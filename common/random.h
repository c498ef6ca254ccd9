// Counter-based random numbers: a draw is a function of its key, never of what was drawn before.
// That is what makes a seeded request give the same tokens alone, batched, preempted or taken over
// by another worker. Philox4x32-10: Salmon et al., "Parallel Random Numbers: As Easy as 1, 2, 3",
// SC 2011. Pure functions: any thread.
#pragma once

#include <array>
#include <cstdint>

namespace aisp {

// Ten Philox rounds over a 128-bit counter with a 64-bit key.
std::array<uint32_t, 4> Philox4x32(uint64_t key, std::array<uint32_t, 4> counter);

// Standard Gumbel noise for one candidate token: -log(-log(u)), u uniform in (0,1) from Philox with
// key = seed and counter = {token / 4, position, choice, 0}, word token % 4, u = (word >> 9 + 0.5)
// * 2^-23. `position` is the index in the sequence (prompt included) of the token being drawn.
float GumbelNoise(uint64_t seed, uint32_t choice, uint32_t position, uint32_t token);

// SplitMix64 for everything that only needs to be spread out (ids, tie-breaks, simulation). Not
// thread-safe.
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
