// ForwardingExecutor: forwards every call to another executor. Wrappers derive from it and override
// what they change, so that a function added to the interface is not lost on the way to the engine.
#pragma once

#include <memory>
#include <string_view>
#include <utility>
#include <vector>

#include "engine/model_executor.h"

namespace aisp {

class ForwardingExecutor : public ServingExecutor {
 public:
  explicit ForwardingExecutor(std::unique_ptr<ServingExecutor> inner) : inner_(std::move(inner)) {}

  int max_depth() const override { return inner_->max_depth(); }
  const KvLayout& kv_layout() const override { return inner_->kv_layout(); }
  int32_t max_context() const override { return inner_->max_context(); }
  int32_t max_batch_tokens() const override { return inner_->max_batch_tokens(); }
  int32_t max_slots() const override { return inner_->max_slots(); }
  int32_t max_draws() const override { return inner_->max_draws(); }
  std::vector<SlowPathCount> slow_paths() const override { return inner_->slow_paths(); }
  bool copies_blocks() const override { return inner_->copies_blocks(); }
  bool applies_masks() const override { return inner_->applies_masks(); }
  int32_t vocabulary() const override { return inner_->vocabulary(); }
  int32_t max_scored_rows() const override { return inner_->max_scored_rows(); }
  int32_t hidden_size() const override { return inner_->hidden_size(); }
  int32_t feature_size() const override { return inner_->feature_size(); }
  bool features_on_host() const override { return inner_->features_on_host(); }
  int32_t max_kept_features() const override { return inner_->max_kept_features(); }
  std::vector<int32_t> step_sizes() const override { return inner_->step_sizes(); }
  int32_t adapter_slots() const override { return inner_->adapter_slots(); }
  int32_t FindAdapter(std::string_view digest) const override {
    return inner_->FindAdapter(digest);
  }
  std::string_view AdapterIn(int32_t slot) const override { return inner_->AdapterIn(slot); }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    return inner_->SetAdapter(slot, std::move(adapter));
  }
  Result<Ticket> Launch(const StepInput& input) override { return inner_->Launch(input); }
  Result<StepResult> Collect(Ticket ticket) override { return inner_->Collect(ticket); }
  bool Done(Ticket ticket) override { return inner_->Done(ticket); }
  const Buffer& kv_pool() const override { return inner_->kv_pool(); }
  const Model& model() const override { return inner_->model(); }
  TensorView logits() const override { return inner_->logits(); }
  Stream* stream() const override { return inner_->stream(); }

 private:
  const std::unique_ptr<ServingExecutor> inner_;
};

}  // namespace aisp
