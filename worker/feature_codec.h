// Features of a prompt's last positions between wire messages and the engine's plain values. Pure
// functions: any thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "common/result.h"
#include "engine/engine.h"
#include "kv.pb.h"

namespace aisp {

// `row_size`: elements of one position's.
v1::FeaturesWanted FeaturesWantedOf(int32_t positions, std::span<const int32_t> layers,
                                    int32_t row_size);
// Of how many positions whoever gives those of `layers` keeps them for who wants `wanted`: at most
// `max_bytes`, and none where others are wanted.
int32_t FeatureWindowFor(const v1::FeaturesWanted& wanted, std::span<const int32_t> layers,
                         int32_t row_size, size_t max_bytes);

void FeaturesToWire(const PromptFeatures& features, v1::PromptFeatures* wire);
// The rows. INVALID_ARGUMENT: they are not whole, finite rows of at most `positions` positions up
// to `end`.
Result<std::vector<float>> FeaturesFromWire(const v1::PromptFeatures& wire, int32_t row_size,
                                            int32_t end, int32_t positions);

}  // namespace aisp
