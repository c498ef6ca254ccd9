#include "model/adapter_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "common/check.h"
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

void AdapterTable::Add(const PackedLinear* weight, std::span<const StackedPart> parts, int64_t in) {
  if (slots_ == 0) return;
  for (const StackedPart& part : parts) modules_.insert(part.name);
  auto adapted = std::make_unique<AdaptedLinear>();
  adapted->adapters.resize(slots_);
  adapted->in = in;
  int64_t column = 0;
  for (const StackedPart& part : parts) {
    adapted->ranges.push_back({column, part.out});
    column += part.out;
  }
  linears_.push_back({weight, in, {parts.begin(), parts.end()}, std::move(adapted)});
}

void AdapterTable::Bind(Programme* programme) {
  std::map<const PackedLinear*, const AdaptedLinear*> bound;
  for (const Linear& linear : linears_) bound.emplace(linear.weight, linear.adapted.get());
  programme->BindAdapters([&bound](const PackedLinear* weight) -> const AdaptedLinear* {
    const auto found = bound.find(weight);
    return found == bound.end() ? nullptr : found->second;
  });
}

Result<PackedAdapter> AdapterTable::Pack(const LoraAdapter& adapter) const {
  for (const auto& [module, matrix] : adapter.matrices()) {
    if (modules_.count(module) != 0) continue;
    return Unimplemented(
        fmt::format("the adapter '{}' changes {}, which adapters cannot change here; the linear "
                    "layers of attention and of MLPs that are no experts are possible",
                    adapter.name(), Excerpt(module)));
  }
  PackedAdapter packed;
  packed.digest = adapter.digest();
  packed.linears.resize(linears_.size());
  for (size_t i = 0; i < linears_.size(); ++i) {
    const Linear& linear = linears_[i];
    int64_t column = 0;
    for (const StackedPart& part : linear.parts) {
      const int64_t first = std::exchange(column, column + part.out);
      const auto found = adapter.matrices().find(part.name);
      if (found == adapter.matrices().end()) continue;
      const LoraAdapter::Matrix& matrix = found->second;
      if (matrix.down.cols() != linear.in || matrix.up.rows() != part.out) {
        return InvalidArgument(fmt::format(
            "the adapter '{}' changes {} from {} to {} elements, and the model's is from {} to {}; "
            "it was made for another model",
            adapter.name(), part.name, matrix.down.cols(), matrix.up.rows(), linear.in, part.out));
      }
      packed.linears[i].push_back(MakePart(adapter, matrix, first));
      const AdapterPart& made = packed.linears[i].back();
      packed.bytes += (made.down.size() + made.up.size()) * sizeof(float);
    }
  }
  return packed;
}

void AdapterTable::Set(int32_t slot, PackedAdapter adapter) {
  const auto at = static_cast<size_t>(slot);
  AISP_CHECK(slot >= 0 && at < slots_);
  AISP_CHECK(adapter.linears.empty() || adapter.linears.size() == linears_.size());
  adapter.linears.resize(linears_.size());
  for (size_t i = 0; i < linears_.size(); ++i)
    linears_[i].adapted->adapters[at] = std::move(adapter.linears[i]);
  occupants_[at] = {std::move(adapter.digest), adapter.bytes};
}

void AdapterTable::DropFactors(int32_t slot) {
  for (const Linear& linear : linears_) linear.adapted->adapters[static_cast<size_t>(slot)] = {};
}

int32_t AdapterTable::Find(std::string_view digest) const {
  if (digest.empty()) return -1;
  const auto found = std::find_if(occupants_.begin(), occupants_.end(),
                                  [digest](const Occupant& o) { return o.digest == digest; });
  return found == occupants_.end() ? -1 : static_cast<int32_t>(found - occupants_.begin());
}

size_t AdapterTable::bytes() const {
  return std::accumulate(occupants_.begin(), occupants_.end(), size_t{0},
                         [](size_t sum, const Occupant& o) { return sum + o.bytes; });
}

}  // namespace aisp
