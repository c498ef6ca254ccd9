// PrefixPromises: the prompts that one worker was sent and has not computed yet. Its prefix cache
// will hold them, so the next request with the same beginning is cheapest behind the first one, not
// on another worker that would compute it a second time.
//
// A guess for placement, like PrefixView: a prompt that ends early breaks it. Counted in strides of
// kStride hash units, so that a long prompt costs a few dozen entries. One thread.
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
  static constexpr size_t kStride = 8;  // units; 128 tokens

  // `directory` has the promises of all workers and nothing else; it must outlive this.
  explicit PrefixPromises(PrefixDirectory* directory);
  ~PrefixPromises();
  PrefixPromises(const PrefixPromises&) = delete;
  PrefixPromises& operator=(const PrefixPromises&) = delete;

  // Every Add has one Remove with the same units.
  void Add(std::span<const Hash128> prompt_units);
  void Remove(std::span<const Hash128> prompt_units);

  // Where the directory counts this worker; absent when it is full.
  std::optional<uint16_t> slot() const { return slot_; }

  // What the directory is asked for: the last unit of each whole stride.
  static void Strides(std::span<const Hash128> prompt_units, std::vector<Hash128>* out);

 private:
  PrefixDirectory* const directory_;
  const std::optional<uint16_t> slot_;
  struct Promised {
    Hash128 key;
    uint64_t prompts = 0;  // by how many
  };
  PrefixTable<Promised> promised_;
};

}  // namespace aisp
