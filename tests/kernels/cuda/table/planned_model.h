// A model on a GPU that does not exist, with its KV pool bound: the subject of the table's tests.
#pragma once

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/model_executor.h"
#include "kernels/cuda/table/kernel_table.h"
#include "kernels/cuda/table/planning.h"
#include "model/model.h"

namespace aisp::cuda {

struct PlannedModel {
  DeviceFacts facts = H200Facts();
  TuningProfile profile;
  PlanningBackend backend;
  std::unique_ptr<Model> model;
  Buffer pool;

  ChoiceFacts choice() const { return {&facts, &profile, {}, {}}; }
  const Programme& programme() const { return model->programme(); }
  std::vector<PlannedLaunch> Resolved(const Bucket& bucket) const {
    auto launches = Resolve(programme(), CanonicalBucket(bucket), choice());
    EXPECT_TRUE(launches.has_value()) << launches.error().message;
    return launches ? std::move(*launches) : std::vector<PlannedLaunch>{};
  }
};

inline std::unique_ptr<PlannedModel> PlanModel(const std::string& shape,
                                               std::optional<WeightFormat> format,
                                               std::optional<DType> dtype, DType kv_dtype,
                                               std::vector<int32_t> feature_layers = {}) {
  auto planned = std::make_unique<PlannedModel>();
  planned->backend = MakePlanningBackend(planned->facts, {}, 1024);
  ModelOptions options;
  options.compute_dtype = dtype;
  options.max_batch_tokens = 2048;
  options.max_logit_rows = options.max_sequences = 256;
  options.max_context = 64;
  options.random_weights = 1;
  options.weight_format = format;
  options.feature_layers = std::move(feature_layers);
  auto model = Model::Load(std::string(AISP_SOURCE_DIR) + "/config/models/" + shape + ".json",
                           options, *planned->backend.device, *planned->backend.ops);
  EXPECT_TRUE(model.has_value()) << model.error().message;
  if (!model) return nullptr;
  planned->model = std::move(*model);
  auto layout = MakeKvLayout(planned->model->spec().kv(), 64, kv_dtype, 8, 0);
  EXPECT_TRUE(layout.has_value());
  planned->pool =
      std::move(*planned->backend.device->Allocate(layout->PoolBytes(), MemoryKind::kDevice));
  const Status bound = planned->model->Bind(KvViews(*layout, planned->pool.data()), nullptr);
  EXPECT_TRUE(bound.has_value()) << bound.error().message;
  return planned;
}

inline Bucket DecodeBucket(int32_t rows) {
  Bucket bucket;
  bucket.sequences = bucket.rows = bucket.logit_rows = bucket.draws = rows;
  bucket.rows_per_sequence = 1;
  bucket.all_logits = true;
  bucket.part = StepPart::kWhole;
  return bucket;
}

// Sequences of `each` rows that verify draft tokens.
inline Bucket VerifyBucket(int32_t sequences, int32_t each) {
  Bucket bucket = DecodeBucket(sequences * each);
  bucket.sequences = sequences;
  bucket.rows_per_sequence = each;
  bucket.mode = StepMode::kVerify;
  return bucket;
}

inline Bucket PrefillBucket(int32_t rows) {
  Bucket bucket;
  bucket.sequences = bucket.logit_rows = bucket.draws = 1;
  bucket.rows = bucket.rows_per_sequence = rows;
  bucket.mode = StepMode::kPrefill;
  bucket.part = StepPart::kWhole;
  return bucket;
}

}  // namespace aisp::cuda
