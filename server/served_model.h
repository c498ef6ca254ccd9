// ServedModel: a checkpoint as a process serves it, without weights: its text side
// (frontend/text_model.h), its shapes, and the fingerprint that routers and workers compare.
//
// Immutable after Load except for the adapters; any thread.
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
  // On a GPU, steps with at least so many rows round activations to FP8 in layers with FP8 weights;
  // 0: never.
  int32_t fp8_activation_rows = 0;
  KvLayout kv_layout;  // num_blocks is 0 unless configured; the worker then chooses
  v1::Fingerprint fingerprint;
  // The same object as `constraints`, for workers; null: no constraints are possible.
  std::shared_ptr<ConstraintPool> guides;
};

// The folder of `config.model.path` (which may name a shipped model), or of the built-in model.
// NOT_FOUND lists the places searched.
Result<std::string> ResolveModelPath(const Config& config);

// Names of the shipped shapes, which need --weights random:SEED instead of a checkpoint.
std::vector<std::string> ShapeNames();

// Reads all but the weights. Errors name the file.
Result<std::unique_ptr<ServedModel>> LoadServedModel(const Config& config);

}  // namespace aisp
