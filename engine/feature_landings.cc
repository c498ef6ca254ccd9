#include "engine/feature_landings.h"

#include <algorithm>
#include <utility>

namespace aisp {

Result<std::unique_ptr<FeatureLandings>> FeatureLandings::Create(size_t rows, size_t size,
                                                                 size_t row_bytes, Device& device) {
  std::unique_ptr<FeatureLandings> made(new FeatureLandings(rows, size, row_bytes, device));
  AISP_ASSIGN_OR_RETURN(made->memory_,
                        device.Allocate(kPlaces * rows * row_bytes, MemoryKind::kHost));
  auto* memory = static_cast<std::byte*>(made->memory_.data());
  for (Landing& landing : made->landings_) {
    landing.rows = std::exchange(memory, memory + rows * row_bytes);
    AISP_ASSIGN_OR_RETURN(landing.read, device.CreateEvent());
  }
  return made;
}

// Null: the device still reads all of them.
Result<FeatureLandings::Landing*> FeatureLandings::Free() {
  for (Landing& landing : landings_) {
    if (landing.given) continue;
    if (landing.waiting) {
      AISP_ASSIGN_OR_RETURN(const bool read, device_.Query(*landing.read));
      if (!read) continue;
      landing.waiting = false;
    }
    landing.given = true;
    return &landing;
  }
  return nullptr;
}

Status FeatureLandings::Place(std::span<const std::span<const float>> runs, const Format& format,
                              Stream& stream, std::vector<std::span<const std::byte>>* placed) {
  for (Landing& landing : landings_) {
    if (!std::exchange(landing.given, false)) continue;
    AISP_RETURN_IF_ERROR(device_.Record(*landing.read, stream));
    landing.waiting = true;
  }
  placed->clear();
  for (const std::span<const float> run : runs) {
    AISP_ASSIGN_OR_RETURN(Landing* const landing, Free());
    const std::span<const float> last = run.last(std::min(run.size(), rows_ * size_));
    if (landing != nullptr) format(last, landing->rows);
    const size_t bytes = landing != nullptr ? last.size() / size_ * row_bytes_ : 0;
    placed->emplace_back(landing != nullptr ? landing->rows : nullptr, bytes);
  }
  return {};
}

}  // namespace aisp
