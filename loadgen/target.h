// Asks the server, before the run, what it serves and how it counts tokens. Blocks.
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
  Url url;                               // of HTTP
  std::shared_ptr<const TlsDialer> tls;  // of https
  std::string model;
  int64_t max_model_len = 0;  // 0: not known
  PromptMaker prompts;
  std::vector<std::string> notes;
};

// `made_up`: the dataset has prompts that are made here, whose words or ids must be chosen. Waits
// --wait-ready for the server.
Result<Target> AskServer(const Options& options, bool made_up);

// The distinct token ids of our words, for prompts of ids; too few are an error.
Result<std::vector<TokenId>> PoolOf(const std::vector<TokenId>& tokens);

}  // namespace aisp::loadgen
