// AdapterTable: the matrices of a model that LoRA adapters may change, and the factors of the
// adapter in each slot. A row of a step names a slot (StepInputs::adapter_of_row).
//
// Matrices are collected while the model loads; after Bind they and each node's AdaptedLinear do
// not move. Pack: any thread. Set: the thread that enqueues steps, while no step uses the slot.
// Outlives the programme.
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

// One of the matrices that are stacked along their output.
struct StackedPart {
  std::string name;  // without ".weight"
  int64_t out = 0;
};

// An adapter in the kernels' layout; hundreds of megabytes, so it is moved, not copied.
struct PackedAdapter {
  std::string digest;                             // LoraAdapter's
  std::vector<std::vector<AdapterPart>> linears;  // in the table's order; empty: no adapter
  size_t bytes = 0;
};

class AdapterTable {
 public:
  // With 0 slots nothing is collected or bound.
  explicit AdapterTable(int32_t slots) : slots_(static_cast<size_t>(slots)) {}

  int32_t slots() const { return static_cast<int32_t>(slots_); }
  // Registers a matrix that adapters may change, stacked from these parts.
  void Add(const PackedLinear* weight, std::span<const StackedPart> parts, int64_t in);
  // After all Adds: gives the programme's nodes pointers to the slots' factors.
  void Bind(Programme* programme);

  // INVALID_ARGUMENT names adapter, module and both shapes if they differ; UNIMPLEMENTED names
  // adapter and module if no node would apply it: heads, embeddings, experts.
  Result<PackedAdapter> Pack(const LoraAdapter& adapter) const;
  void Set(int32_t slot, PackedAdapter adapter);
  // Frees the host's copies once the factors are on the device.
  void DropFactors(int32_t slot);
  // The slot of the adapter with this digest; -1: none.
  int32_t Find(std::string_view digest) const;
  std::string_view DigestIn(int32_t slot) const {
    return occupants_.at(static_cast<size_t>(slot)).digest;
  }
  size_t bytes() const;  // of all slots' factors

 private:
  struct Linear {
    const PackedLinear* weight = nullptr;
    int64_t in = 0;
    std::vector<StackedPart> parts;
    std::unique_ptr<AdaptedLinear> adapted;  // allocated for a stable address
  };

  const size_t slots_;
  std::vector<Linear> linears_;
  std::set<std::string> modules_;
  struct Occupant {
    std::string digest;  // "": empty slot
    size_t bytes = 0;
  };
  std::vector<Occupant> occupants_ = std::vector<Occupant>(slots_);  // by slot
};

}  // namespace aisp
