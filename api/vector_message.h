// The encoders of api/vector_encoder.h for gRPC: the body is a serialized EmbedResponse,
// ScoreResponse or RerankResponse of aisp.v1.Inference. Pure; one thread per encoder.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "api/vector_encoder.h"

namespace aisp {

std::unique_ptr<VectorEncoder> MakeEmbedMessageEncoder(std::string model, size_t inputs,
                                                       std::optional<uint32_t> dimensions);
// As MakeScoresEncoder.
std::unique_ptr<VectorEncoder> MakeScoreMessageEncoder(std::string model, size_t first,
                                                       size_t second);
std::unique_ptr<VectorEncoder> MakeRerankMessageEncoder(std::string model, RerankRequest request);

}  // namespace aisp
