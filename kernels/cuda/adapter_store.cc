#include "kernels/cuda/adapter_store.h"

#include <algorithm>
#include <string>

#include "common/check.h"
#include "kernels/cuda/cuda_error.h"

namespace aisp::cuda {
namespace {

size_t Aligned(size_t bytes) { return (bytes + 255) / 256 * 256; }

}  // namespace

Result<std::unique_ptr<AdapterStore>> AdapterStore::Reserve(const Programme& programme,
                                                            int32_t slots, int32_t rank,
                                                            int32_t max_rows, Device& device) {
  if (rank < 1 || rank > kMostAdapterRank) {
    return Unimplemented("LoRA adapters of rank " + std::to_string(rank) +
                         " on a GPU; ranks of at most " + std::to_string(kMostAdapterRank) +
                         " are possible, see --max-lora-rank");
  }
  std::unique_ptr<AdapterStore> store(new AdapterStore(device, slots));
  for (NodeId id = 0; id < static_cast<NodeId>(programme.nodes().size()); ++id) {
    const auto* linear = std::get_if<LinearParams>(&programme.node(id).params);
    if (linear == nullptr || linear->adapters == nullptr) continue;
    AISP_RETURN_IF_ERROR(store->AddLayer(*linear, (rank + 15) / 16 * 16, programme.Describe(id)));
  }
  const auto allocate = [&](Buffer* buffer, size_t bytes) -> Status {
    AISP_ASSIGN_OR_RETURN(*buffer,
                          device.Allocate(std::max<size_t>(bytes, 1), MemoryKind::kDevice));
    return {};
  };
  AISP_RETURN_IF_ERROR(allocate(&store->factors_, store->factor_bytes_));
  AISP_RETURN_IF_ERROR(allocate(&store->device_ranks_, store->ranks_.size() * sizeof(int32_t)));
  AISP_RETURN_IF_ERROR(
      allocate(&store->sums_,
               static_cast<size_t>(AdapterSumRows(max_rows) * store->most_width_) * sizeof(float)));
  const int32_t gated_rows = std::min(max_rows, kMostGatedAdapterRows);
  AISP_RETURN_IF_ERROR(allocate(
      &store->gated_, static_cast<size_t>(gated_rows * store->most_columns_) * sizeof(uint16_t)));
  for (auto& [adapted, layer] : store->layers_) {
    layer.device.factors = static_cast<std::byte*>(store->factors_.data()) + layer.offset;
    layer.device.ranks = static_cast<const int32_t*>(store->device_ranks_.data()) + layer.ranks_at;
  }
  AISP_RETURN_IF_ERROR(store->ReserveChains());
  return store;
}

// Empty slots hold zeros: a chain multiplies by all of them.
Status AdapterStore::ReserveChains() {
  if (most_chain_width_ == 0) return {};
  AISP_ASSIGN_OR_RETURN(chain_factors_, device_.Allocate(chain_bytes_, MemoryKind::kDevice));
  const size_t sum_bytes = size_t{kMostChainRows} * static_cast<size_t>(most_chain_width_) * 2;
  AISP_ASSIGN_OR_RETURN(chain_sums_, device_.Allocate(sum_bytes, MemoryKind::kDevice));
  const char* const what = "clearing room for adapters";
  AISP_RETURN_IF_ERROR(Check(cudaMemset(chain_factors_.data(), 0, chain_bytes_), what));
  AISP_RETURN_IF_ERROR(Check(cudaMemset(chain_sums_.data(), 0, sum_bytes), what));
  AISP_RETURN_IF_ERROR(Check(cudaStreamSynchronize(cudaStreamLegacy), what));
  for (auto& [adapted, layer] : layers_) {
    if (layer.chain.width == 0) continue;
    auto* const factors = static_cast<std::byte*>(chain_factors_.data()) + layer.chain_at;
    layer.chain.down = factors;
    layer.chain.up = factors + Aligned(static_cast<size_t>(layer.chain.width) *
                                       static_cast<size_t>(layer.device.in) * 2);
    layer.chain.v = chain_sums_.data();
  }
  return {};
}

const ChainAdapters* AdapterStore::ChainOf(const AdaptedLinear& adapted) const {
  const ChainAdapters& chain = layers_.at(&adapted).chain;
  return chain.width > 0 ? &chain : nullptr;
}

Status AdapterStore::AddLayer(const LinearParams& params, int32_t rank_room,
                              std::string_view name) {
  const AdaptedLinear& adapted = *params.adapters;
  const LinearTraits w = params.weight->traits();
  const auto family = static_cast<LinearFamily>(w.family);
  const bool half = family == LinearFamily::kFast;
  if (!half &&
      (family != LinearFamily::kPlain || w.input != DType::kF32 || w.output != DType::kF32)) {
    return Unimplemented(std::string(name) +
                         ": LoRA adapters are not supported on this GPU for such a layer; serve "
                         "them with --device cpu, or leave --lora and --runtime-lora out");
  }
  AISP_CHECK(adapted.ranges.size() <= kMostAdapterRanges);
  Layer layer;
  AdapterLayer& d = layer.device;
  d.type = half ? DType::kBF16 : DType::kF32;
  d.in = static_cast<int32_t>(adapted.in);
  d.rank_room = rank_room;
  d.num_ranges = static_cast<int32_t>(adapted.ranges.size());
  d.slot_stride = int64_t{d.num_ranges} * rank_room * d.in;
  for (size_t i = 0; i < adapted.ranges.size(); ++i) {
    const AdaptedRange& range = adapted.ranges[i];
    if (half && (range.out % 8 != 0 || range.column % 8 != 0)) {
      return Unimplemented(std::string(name) +
                           ": LoRA adapters on a GPU want outputs in multiples "
                           "of 8, here are " +
                           std::to_string(range.out));
    }
    d.ranges[i] = {static_cast<int32_t>(range.column), static_cast<int32_t>(range.out),
                   d.slot_stride};
    d.slot_stride += range.out * rank_room;
    staging_bytes_ =
        std::max(staging_bytes_, static_cast<size_t>(rank_room) *
                                     static_cast<size_t>(adapted.in + range.out) * sizeof(float));
  }
  layer.offset = factor_bytes_;
  layer.ranks_at = ranks_.size();
  factor_bytes_ += Aligned(static_cast<size_t>(slots_ * d.slot_stride) * DTypeBytes(d.type));
  ranks_.resize(ranks_.size() + static_cast<size_t>(slots_ * kMostAdapterRanges));
  most_width_ = std::max(most_width_, int64_t{d.num_ranges} * rank_room);
  layer.gated = w.epilogue == Epilogue::kGatedSilu;
  if (layer.gated) most_columns_ = std::max(most_columns_, w.n);
  const int32_t width = slots_ * d.num_ranges * rank_room;
  if (half && w.format == WeightFormat::kCompute && width <= kMostChainAdapterWidth) {
    layer.chain.width = width;
    layer.chain.columns = d.num_ranges * rank_room;
    layer.chain_at = chain_bytes_;
    chain_bytes_ += Aligned(static_cast<size_t>(width * d.in) * 2);
    chain_bytes_ += Aligned(static_cast<size_t>(width * w.n) * 2);
    most_chain_width_ = std::max(most_chain_width_, width);
  }
  layers_.emplace(&adapted, layer);
  return {};
}

bool AdapterStore::IsOf(const Programme& programme) const {
  return std::any_of(programme.nodes().begin(), programme.nodes().end(), [&](const Node& node) {
    const auto* linear = std::get_if<LinearParams>(&node.params);
    return linear != nullptr && linear->adapters != nullptr && Has(linear->adapters);
  });
}

Status AdapterStore::Place(const Programme& programme, int32_t slot, Stream& stream) {
  AISP_CHECK(slot >= 0 && slot < slots_);
  AISP_ASSIGN_OR_RETURN(const Buffer staging,
                        device_.Allocate(std::max<size_t>(staging_bytes_, 1), MemoryKind::kDevice));
  for (const Node& node : programme.nodes()) {
    const auto* linear = std::get_if<LinearParams>(&node.params);
    if (linear == nullptr || linear->adapters == nullptr) continue;
    AISP_RETURN_IF_ERROR(PlaceLayer(*linear->adapters, slot, staging, stream));
  }
  // Also rewrites the other slots' ranks, unchanged.
  AISP_RETURN_IF_ERROR(
      device_.Copy(device_ranks_.data(), ranks_.data(), ranks_.size() * sizeof(int32_t), stream));
  return device_.Synchronize(stream);
}

Status AdapterStore::PlaceLayer(const AdaptedLinear& adapted, int32_t slot, const Buffer& staging,
                                Stream& stream) {
  const Layer& layer = layers_.at(&adapted);
  int32_t* const ranks = ranks_.data() + layer.ranks_at + slot * kMostAdapterRanges;
  std::fill(ranks, ranks + kMostAdapterRanges, 0);
  auto* const factors =
      static_cast<std::byte*>(factors_.data()) + layer.offset +
      static_cast<size_t>(slot * layer.device.slot_stride) * DTypeBytes(layer.device.type);
  if (layer.chain.width > 0) {
    const size_t bytes = static_cast<size_t>(layer.chain.columns) *
                         static_cast<size_t>(layer.device.in) * sizeof(uint16_t);
    auto* const downs = static_cast<std::byte*>(const_cast<void*>(layer.chain.down));
    AISP_RETURN_IF_ERROR(Check(
        cudaMemsetAsync(downs + static_cast<size_t>(slot) * bytes, 0, bytes, HandleOf(stream)),
        "clearing an adapter's place"));
  }
  for (const AdapterPart& part : adapted.adapters[static_cast<size_t>(slot)]) {
    const auto at = std::find_if(adapted.ranges.begin(), adapted.ranges.end(),
                                 [&](const AdaptedRange& r) { return r.column == part.column; });
    AISP_CHECK(at != adapted.ranges.end() && at->out == part.out);
    AISP_CHECK(part.rank <= layer.device.rank_room);
    auto* const down = static_cast<float*>(staging.data());
    float* const up = down + part.down.size();
    AISP_RETURN_IF_ERROR(
        device_.Copy(down, part.down.data(), part.down.size() * sizeof(float), stream));
    AISP_RETURN_IF_ERROR(device_.Copy(up, part.up.data(), part.up.size() * sizeof(float), stream));
    const auto range = static_cast<int32_t>(at - adapted.ranges.begin());
    AISP_RETURN_IF_ERROR(
        LaunchPackAdapter(layer.device, range, part.rank, down, up, factors, HandleOf(stream)));
    if (layer.chain.width > 0) {
      AISP_RETURN_IF_ERROR(LaunchPackChainAdapter(layer.device, layer.chain, slot, range,
                                                  layer.gated, part.rank, down, up,
                                                  HandleOf(stream)));
    }
    ranks[range] = part.rank;
  }
  return {};
}

AdapterRows AdapterStore::RowsOf(const void* x, const int32_t* adapter_of_row, int32_t rows) const {
  AdapterRows out;
  out.adapter_of_row = adapter_of_row;
  out.rows = rows;
  out.x = x;
  out.v = static_cast<float*>(sums_.data());
  return out;
}

Status AdapterStore::Down(const AdaptedLinear& adapted, const void* x,
                          const int32_t* adapter_of_row, int32_t rows, cudaStream_t stream) const {
  return LaunchAdapterDown(layers_.at(&adapted).device, RowsOf(x, adapter_of_row, rows), stream);
}

Status AdapterStore::Up(const AdaptedLinear& adapted, const int32_t* adapter_of_row, int32_t rows,
                        const AdapterOutput& output, cudaStream_t stream) const {
  return LaunchAdapterUp(layers_.at(&adapted).device, RowsOf(nullptr, adapter_of_row, rows), output,
                         stream);
}

}  // namespace aisp::cuda
