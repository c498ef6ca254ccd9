// PrefixPromises: prompts sent to one worker that it has not computed yet. Its prefix cache will
// hold them, so the next request with the same prefix is cheapest on the same worker, after the
// first one.
//
// A guess for placement, like PrefixView: wrong if a prompt ends early. Counted in strides of
// kStride hash units, so that a long prompt needs only a few dozen entries. One thread.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/hash.h"
#include "router/prefix_directory.h"
#include "router/prefix_table.h"

namespace aisp {

class PrefixPromises {
 public:
  static constexpr size_t kStride = 8;  // hash units; 128 tokens

  // `directory` holds the promises of all workers and nothing else; it must outlive this.
  explicit PrefixPromises(PrefixDirectory* directory);
  ~PrefixPromises();
  PrefixPromises(const PrefixPromises&) = delete;
  PrefixPromises& operator=(const PrefixPromises&) = delete;

  // Every Add has one Remove with the same units.
  void Add(std::span<const Hash128> prompt_units);
  void Remove(std::span<const Hash128> prompt_units);

  // This worker's slot in the directory; absent if that is full.
  std::optional<uint16_t> slot() const { return slot_; }

  // The keys for a directory search: the last unit of each whole stride.
  static void Strides(std::span<const Hash128> prompt_units, std::vector<Hash128>* out);

 private:
  PrefixDirectory* const directory_;
  const std::optional<uint16_t> slot_;
  struct Promised {
    Hash128 key;
    uint64_t prompts = 0;  // promises that include it
  };
  PrefixTable<Promised> promised_;
};

}  // namespace aisp
