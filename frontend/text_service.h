// Answers /tokenize and /detokenize for any surface. Pure apart from reading the model: any thread,
// meant for the pool.
#pragma once

#include <string>
#include <vector>

#include "api/request.h"
#include "frontend/text_model.h"

namespace aisp {

struct Tokenized {
  std::vector<TokenId> tokens;
  std::vector<std::string> pieces;  // one per token, on request
};
ApiResult<Tokenized> Tokenize(const TextModel& model, const TokenizeRequest& request);

// Control tokens appear as text.
ApiResult<std::string> Detokenize(const TextModel& model, const DetokenizeRequest& request);

}  // namespace aisp
