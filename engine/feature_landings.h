// FeatureLandings: the way of features from the host to a device that computes beside it.
//
// Runs of rows are written to places in page-locked memory, from where the device reads them behind
// the steps in flight. A place is free once an event behind its readers has passed, which is asked
// and never waited for. Engine thread only.
#pragma once

#include <array>
#include <cstddef>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "kernels/device/device.h"

namespace aisp {

class FeatureLandings {
 public:
  static constexpr size_t kPlaces = 32;

  // `rows`: those of a run that have room, the last ones; `size`: numbers of a row; `row_bytes`:
  // what a row takes on the device.
  static Result<std::unique_ptr<FeatureLandings>> Create(size_t rows, size_t size, size_t row_bytes,
                                                         Device& device);

  // f32 rows in the device's format.
  using Format = std::function<void(std::span<const float> rows, std::byte* to)>;
  // Of each run as many of the last rows as there is room for: none where the device still reads
  // all places. `placed` stays until the next call; all that reads it is enqueued on `stream` by
  // then.
  Status Place(std::span<const std::span<const float>> runs, const Format& format, Stream& stream,
               std::vector<std::span<const std::byte>>* placed);

 private:
  struct Landing {
    std::byte* rows = nullptr;
    std::unique_ptr<Event> read;
    bool given = false;    // by the last call: all that reads it is enqueued before the next one
    bool waiting = false;  // for `read`
  };

  FeatureLandings(size_t rows, size_t size, size_t row_bytes, Device& device)
      : rows_(rows), size_(size), row_bytes_(row_bytes), device_(device) {}
  Result<Landing*> Free();

  const size_t rows_, size_, row_bytes_;
  Device& device_;
  Buffer memory_;
  std::array<Landing, kPlaces> landings_;
};

}  // namespace aisp
