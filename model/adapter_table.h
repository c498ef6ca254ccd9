// AdapterTable: the matrices of a model that low-rank adapters may change, and what the adapter in
// each slot adds to each. A row of a step names a slot (StepInputs::adapter_of_row).
//
// The matrices are collected while the model loads; from Bind on they stay, and with them the
// AdaptedLinear of each node. Pack then takes any thread; Set the thread that enqueues steps, while
// no step uses the slot. Outlives the programme.
#pragma once

#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "kernels/adapters.h"
#include "kernels/programme.h"
#include "model/lora_adapter.h"

namespace aisp {

// A matrix of those that are packed one below the other.
struct StackedPart {
  std::string name;  // without ".weight"
  int64_t out = 0;
};

// An adapter as kernels read it: of hundreds of megabytes, so it is moved.
struct PackedAdapter {
  std::string digest;                             // LoraAdapter's
  std::vector<std::vector<AdapterPart>> linears;  // in the order of the table; empty: no adapter
  size_t bytes = 0;
};

class AdapterTable {
 public:
  // Without slots nothing is collected or bound.
  explicit AdapterTable(int32_t slots) : slots_(static_cast<size_t>(slots)) {}

  int32_t slots() const { return static_cast<int32_t>(slots_); }
  // A matrix that adapters may change, of these parts.
  void Add(const PackedLinear* weight, std::span<const StackedPart> parts, int64_t in);
  // After all Adds: gives the programme's nodes the place where they find what is in the slots.
  void Bind(Programme* programme);

  // INVALID_ARGUMENT names adapter, module and both shapes where they differ; UNIMPLEMENTED names
  // adapter and module where it changes what no node would apply: heads, embeddings, experts.
  Result<PackedAdapter> Pack(const LoraAdapter& adapter) const;
  void Set(int32_t slot, PackedAdapter adapter);
  // They are on the device: the host's copies go.
  void DropFactors(int32_t slot);
  // The slot of the adapter with this digest; -1: it is in none.
  int32_t Find(std::string_view digest) const;
  std::string_view DigestIn(int32_t slot) const {
    return occupants_.at(static_cast<size_t>(slot)).digest;
  }
  size_t bytes() const;  // of what is in the slots

 private:
  struct Linear {
    const PackedLinear* weight = nullptr;
    int64_t in = 0;
    std::vector<StackedPart> parts;
    std::unique_ptr<AdaptedLinear> adapted;  // for its address
  };

  const size_t slots_;
  std::vector<Linear> linears_;
  std::set<std::string> modules_;
  struct Occupant {
    std::string digest;  // "": the slot is empty
    size_t bytes = 0;
  };
  std::vector<Occupant> occupants_ = std::vector<Occupant>(slots_);  // by slot
};

}  // namespace aisp
