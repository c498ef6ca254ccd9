// Queries the server before the run: its model, and how it counts tokens. Blocks.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"
#include "loadgen/prompts.h"
#include "net/tls_dialer.h"

namespace aisp::loadgen {

struct Target {
  Url url;                               // for HTTP
  std::shared_ptr<const TlsDialer> tls;  // for https
  std::string model;
  int64_t max_model_len = 0;  // 0: unknown
  PromptMaker prompts;
  std::vector<std::string> notes;
};

// `made_up`: the dataset is synthetic, so words or ids must be chosen for the server. Waits
// --wait-ready for the server.
Result<Target> AskServer(const Options& options, bool made_up);

// The distinct token ids of our words, for prompts of ids; an error if there are too few.
Result<std::vector<TokenId>> PoolOf(const std::vector<TokenId>& tokens);

}  // namespace aisp::loadgen
