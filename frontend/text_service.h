// What /tokenize and /detokenize answer, for any surface. Pure but for the model that they read:
// any thread, made for the pool's.
#pragma once

#include <string>
#include <vector>

#include "api/request.h"
#include "frontend/text_model.h"

namespace aisp {

struct Tokenized {
  std::vector<TokenId> tokens;
  std::vector<std::string> pieces;  // one for each token, when asked for
};
ApiResult<Tokenized> Tokenize(const TextModel& model, const TokenizeRequest& request);

// Control tokens are spelled out.
ApiResult<std::string> Detokenize(const TextModel& model, const DetokenizeRequest& request);

}  // namespace aisp
