// ServedModel: a checkpoint as a process serves it: its text side (frontend/text_model.h) with its
// shapes, and the fingerprint that routers and workers compare. No weights.
//
// Immutable after Load but for the names of adapters; any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "config/config.h"
#include "frontend/text_model.h"
#include "kvcache/layout.h"
#include "model/spec.h"
#include "server/constraint_pool.h"
#include "worker.pb.h"

namespace aisp {

struct ServedModel : TextModel {
  std::string path;
  ModelSpec spec;
  // Rows of a step from which on a GPU rounds the inputs of layers with FP8 weights to FP8; 0:
  // never.
  int32_t fp8_activation_rows = 0;
  KvLayout kv_layout;  // num_blocks is 0 unless configured: the worker chooses
  v1::Fingerprint fingerprint;
  // The same object as `constraints`, as workers use it; null: nothing is constrained.
  std::shared_ptr<ConstraintPool> guides;
};

// The folder that `config.model.path` names (a shipped model by its bare name too), or the built-in
// model's; NOT_FOUND lists where it was looked for.
Result<std::string> ResolveModelPath(const Config& config);

// Names of the shipped shapes, which --weights random:SEED serves without a checkpoint.
std::vector<std::string> ShapeNames();

// Reads everything but the weights. Errors name the file.
Result<std::unique_ptr<ServedModel>> LoadServedModel(const Config& config);

}  // namespace aisp
