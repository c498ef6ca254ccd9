#include "worker/feature_codec.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

namespace aisp {

static_assert(std::endian::native == std::endian::little);

v1::FeaturesWanted FeaturesWantedOf(int32_t positions, std::span<const int32_t> layers,
                                    int32_t row_size) {
  v1::FeaturesWanted wanted;
  wanted.set_positions(static_cast<uint32_t>(positions));
  wanted.mutable_layers()->Add(layers.begin(), layers.end());
  wanted.set_row_size(static_cast<uint32_t>(row_size));
  return wanted;
}

int32_t FeatureWindowFor(const v1::FeaturesWanted& wanted, std::span<const int32_t> layers,
                         int32_t row_size, size_t max_bytes) {
  if (row_size <= 0 || wanted.row_size() != static_cast<uint32_t>(row_size) ||
      !std::equal(layers.begin(), layers.end(), wanted.layers().begin(), wanted.layers().end()))
    return 0;
  const size_t most = max_bytes / (static_cast<size_t>(row_size) * sizeof(float));
  return static_cast<int32_t>(std::min<size_t>({wanted.positions(), most, INT32_MAX}));
}

void FeaturesToWire(const PromptFeatures& features, v1::PromptFeatures* wire) {
  const std::span<const std::byte> bytes = std::as_bytes(features.rows);
  wire->set_begin(static_cast<uint32_t>(features.begin));
  wire->set_rows(bytes.data(), bytes.size());
}

Result<std::vector<float>> FeaturesFromWire(const v1::PromptFeatures& wire, int32_t row_size,
                                            int32_t end, int32_t positions) {
  const size_t row_bytes = static_cast<size_t>(row_size) * sizeof(float);
  const size_t rows = wire.rows().size() / row_bytes;
  if (rows * row_bytes != wire.rows().size() || rows > static_cast<size_t>(positions) ||
      wire.begin() + rows != static_cast<size_t>(end)) {
    return InvalidArgument(fmt::format(
        "{} bytes of features from position {} came where at most {} positions of {} bytes up to "
        "{} were asked for",
        wire.rows().size(), wire.begin(), positions, row_bytes, end));
  }
  std::vector<float> features(rows * static_cast<size_t>(row_size));
  std::memcpy(features.data(), wire.rows().data(), wire.rows().size());
  if (std::all_of(features.begin(), features.end(), [](float f) { return std::isfinite(f); }))
    return features;
  return InvalidArgument("a feature that came with a prompt's KV is no finite number");
}

}  // namespace aisp
