#include "model/adapter_table.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/strings.h"
#include "model/weights.h"

namespace aisp {
namespace {

std::vector<float> Floats(const TensorView& tensor) {
  std::vector<float> out(static_cast<size_t>(tensor.rows() * tensor.cols()));
  ReadFloats(tensor, out);
  return out;
}

AdapterPart MakePart(const LoraAdapter& adapter, const LoraAdapter::Matrix& matrix,
                     int64_t column) {
  AdapterPart part;
  part.column = column;
  part.out = matrix.up.rows();
  part.rank = adapter.config().rank;
  part.down = Floats(matrix.down);
  const std::vector<float> up = Floats(matrix.up);
  part.up.resize(up.size());
  const auto rank = static_cast<size_t>(part.rank), out = static_cast<size_t>(part.out);
  for (size_t o = 0; o < out; ++o) {
    for (size_t r = 0; r < rank; ++r)
      part.up[r * out + o] = adapter.config().scale * up[o * rank + r];
  }
  return part;
}

}  // namespace

Status AdapterTable::Add(const PackedLinear* weight, std::span<const StackedPart> parts,
                         int64_t in) {
  AdaptedLinear adapted;
  adapted.adapters.resize(adapters_.size());
  bool any = false;
  int64_t column = 0;
  for (const StackedPart& part : parts) {
    taken_.insert(part.name);
    for (size_t i = 0; i < adapters_.size(); ++i) {
      const LoraAdapter& adapter = *adapters_[i];
      const auto found = adapter.matrices().find(part.name);
      if (found == adapter.matrices().end()) continue;
      const LoraAdapter::Matrix& matrix = found->second;
      if (matrix.down.cols() != in || matrix.up.rows() != part.out) {
        return InvalidArgument(fmt::format(
            "the adapter '{}' changes {} from {} to {} elements, and the model's is from {} to {}; "
            "it was made for another model",
            adapter.name(), part.name, matrix.down.cols(), matrix.up.rows(), in, part.out));
      }
      adapted.adapters[i].push_back(MakePart(adapter, matrix, column));
      const AdapterPart& made = adapted.adapters[i].back();
      bytes_ += (made.down.size() + made.up.size()) * sizeof(float);
      any = true;
    }
    column += part.out;
  }
  if (any) linears_.emplace(weight, std::move(adapted));
  return {};
}

Status AdapterTable::Bind(Programme* programme) const {
  for (const auto& adapter : adapters_) {
    for (const auto& [module, matrix] : adapter->matrices()) {
      if (taken_.count(module) != 0) continue;
      return Unimplemented(
          fmt::format("the adapter '{}' changes {}, which adapters cannot change here; the linear "
                      "layers of attention and of MLPs that are no experts are possible",
                      adapter->name(), Excerpt(module)));
    }
  }
  programme->BindAdapters([this](const PackedLinear* weight) -> const AdaptedLinear* {
    const auto found = linears_.find(weight);
    return found == linears_.end() ? nullptr : &found->second;
  });
  return {};
}

}  // namespace aisp
