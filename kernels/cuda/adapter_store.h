// AdapterStore: the LoRA adapters of a model's programmes in device memory, and their part of a
// step.
//
// Reserve allocates all slots once, at load. So captured graphs find an adapter at the same
// address, and nothing is allocated when one is placed. Layers are identified by their
// AdaptedLinear, which is part of the programme. One thread, that of the Ops.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <vector>

#include "kernels/adapters.h"
#include "kernels/cuda/adapter_kernels.h"
#include "kernels/cuda/cuda_device.h"
#include "kernels/cuda/table/kernel_table.h"
#include "kernels/ops.h"

namespace aisp::cuda {

class AdapterStore {
 public:
  // As Ops::ReserveAdapters; `max_rows` limits a step's rows, padding included.
  static Result<std::unique_ptr<AdapterStore>> Reserve(const Programme& programme, int32_t slots,
                                                       int32_t rank, int32_t max_rows,
                                                       Device& device);
  // Copies the slot's factors of all layers to the device; returns when they have arrived.
  Status Place(const Programme& programme, int32_t slot, Stream& stream);

  bool Has(const AdaptedLinear* adapted) const { return layers_.contains(adapted); }
  bool IsOf(const Programme& programme) const;
  // Down before and Up after the layer's own product of the same x. `y` may be a piece: rows of x,
  // y and adapter_of_row are then those of the piece.
  Status Down(const AdaptedLinear& adapted, const void* x, const int32_t* adapter_of_row,
              int32_t rows, cudaStream_t stream) const;
  Status Up(const AdaptedLinear& adapted, const int32_t* adapter_of_row, int32_t rows,
            const AdapterOutput& output, cudaStream_t stream) const;
  // Null: launches of several layers do not support this layer's adapters.
  const ChainAdapters* ChainOf(const AdaptedLinear& adapted) const;
  // bf16 [kMostGatedAdapterRows, n] for a gated layer's product before SiLU.
  void* gated_rows() const { return gated_.data(); }

 private:
  AdapterStore(Device& device, int32_t slots) : device_(device), slots_(slots) {}
  Status AddLayer(const LinearParams& params, int32_t rank_room, std::string_view name);
  Status ReserveChains();
  Status PlaceLayer(const AdaptedLinear& adapted, int32_t slot, const Buffer& staging,
                    Stream& stream);
  AdapterRows RowsOf(const void* x, const int32_t* adapter_of_row, int32_t rows) const;

  struct Layer {
    AdapterLayer device;
    size_t offset = 0;    // bytes in factors_
    size_t ranks_at = 0;  // elements in ranks_
    bool gated = false;
    // Width 0: not supported in launches of several layers.
    ChainAdapters chain;
    size_t chain_at = 0;  // bytes in chain_factors_: down, then up
  };

  Device& device_;
  const int32_t slots_;
  std::map<const AdaptedLinear*, Layer> layers_;
  std::vector<int32_t> ranks_;  // copy of the device's
  size_t factor_bytes_ = 0;
  size_t staging_bytes_ = 0;
  int64_t most_columns_ = 0;  // gate and up, over gated layers
  int64_t most_width_ = 0;    // of AdapterRows::v
  size_t chain_bytes_ = 0;
  int32_t most_chain_width_ = 0;
  Buffer factors_, device_ranks_, sums_, gated_, chain_factors_, chain_sums_;
};

}  // namespace aisp::cuda
