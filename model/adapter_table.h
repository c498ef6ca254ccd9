// AdapterTable: which adapters change which packed matrix of a model, made while the model loads
// and read by its programme. Built by one thread, then immutable; outlives the programme.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <span>
#include <string>
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

class AdapterTable {
 public:
  explicit AdapterTable(std::vector<std::shared_ptr<const LoraAdapter>> adapters)
      : adapters_(std::move(adapters)) {}

  // Takes what the adapters have for the parts of `weight`. INVALID_ARGUMENT names adapter, module
  // and both shapes where they differ.
  Status Add(const PackedLinear* weight, std::span<const StackedPart> parts, int64_t in);
  // After all Adds: hands it to the programme's nodes. UNIMPLEMENTED names adapter and module where
  // one changes what no node would apply: heads, embeddings, experts.
  Status Bind(Programme* programme) const;
  size_t bytes() const { return bytes_; }

 private:
  const std::vector<std::shared_ptr<const LoraAdapter>> adapters_;
  std::map<const PackedLinear*, AdaptedLinear> linears_;  // addresses are stable
  std::set<std::string> taken_;                           // modules
  size_t bytes_ = 0;
};

}  // namespace aisp
