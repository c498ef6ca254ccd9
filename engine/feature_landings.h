// FeatureLandings: uploads features from the host to an asynchronous device.
//
// Runs of rows are written to page-locked buffers, which the device reads after the steps in
// flight. A buffer is free once an event after its readers has completed; the event is polled,
// never waited for. Engine thread only.
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

  // `rows`: the most rows of a run, its last ones; `size`: elements of a row; `row_bytes`: bytes of
  // a row in the device's format.
  static Result<std::unique_ptr<FeatureLandings>> Create(size_t rows, size_t size, size_t row_bytes,
                                                         Device& device);

  // Writes f32 rows in the device's format.
  using Format = std::function<void(std::span<const float> rows, std::byte* to)>;
  // Of each run as many of the last rows as there is room for; none while the device still reads
  // all buffers. `placed` is valid until the next call; by then all its readers are enqueued on
  // `stream`.
  Status Place(std::span<const std::span<const float>> runs, const Format& format, Stream& stream,
               std::vector<std::span<const std::byte>>* placed);

 private:
  struct Landing {
    std::byte* rows = nullptr;
    std::unique_ptr<Event> read;
    bool given = false;    // by the last call: all its readers are enqueued before the next one
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
