// aisp.v1.Inference as a backend. Loop thread only, except AskGrpcServer, which blocks.
#pragma once

#include <memory>
#include <string>

#include "common/result.h"
#include "loadgen/backend.h"
#include "loadgen/options.h"
#include "loadgen/target.h"

namespace aisp::loadgen {

// `prompts` must outlive the backend.
std::unique_ptr<Backend> MakeGrpcBackend(IoLoop* loop, const Options& options,
                                         const std::string& model, const PromptMaker* prompts);

// As AskServer, by gRPC.
Result<Target> AskGrpcServer(const Options& options, bool made_up);

}  // namespace aisp::loadgen
