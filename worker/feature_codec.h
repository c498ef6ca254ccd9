// Converts features of a prompt's last positions between wire messages and the engine's plain
// values. Pure functions: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "engine/engine.h"
#include "kv.pb.h"

namespace aisp {

// `layers`: whose features are wanted; `row_size`: elements of one position's features.
v1::FeaturesWanted FeaturesWantedOf(int32_t positions, std::span<const int32_t> layers,
                                    int32_t row_size);
// How many positions a provider with features of `layers` keeps for a reader that wants `wanted`:
// at most `max_bytes`; 0 if layers or row size differ.
int32_t FeatureWindowFor(const v1::FeaturesWanted& wanted, std::span<const int32_t> layers,
                         int32_t row_size, size_t max_bytes);

void FeaturesToWire(const PromptFeatures& features, v1::PromptFeatures* wire);
// The rows. INVALID_ARGUMENT: not whole, finite rows of at most `positions` positions ending at
// `end`.
Result<std::vector<float>> FeaturesFromWire(const v1::PromptFeatures& wire, int32_t row_size,
                                            int32_t end, int32_t positions);

}  // namespace aisp
