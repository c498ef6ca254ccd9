// PulseThread: sends what Pulse has to say while the engine thread is inside a step, and
// PulseExecutor, which tells Pulse of the steps.
#pragma once

#include <condition_variable>
#include <memory>
#include <mutex>
#include <utility>

#include "common/clock.h"
#include "common/threads.h"
#include "engine/model_executor.h"
#include "proto/link.h"
#include "worker/pulse.h"

namespace aisp {

// Passes everything on. The engine thread.
class PulseExecutor final : public ServingExecutor {
 public:
  PulseExecutor(std::unique_ptr<ServingExecutor> real, Pulse* pulse, const Clock* clock)
      : real_(std::move(real)), pulse_(pulse), clock_(clock) {}
  int max_depth() const override { return real_->max_depth(); }
  const KvLayout& kv_layout() const override { return real_->kv_layout(); }
  int32_t max_context() const override { return real_->max_context(); }
  int32_t max_batch_tokens() const override { return real_->max_batch_tokens(); }
  int32_t max_slots() const override { return real_->max_slots(); }
  int32_t max_draws() const override { return real_->max_draws(); }
  std::vector<SlowPathCount> slow_paths() const override { return real_->slow_paths(); }
  bool applies_masks() const override { return real_->applies_masks(); }
  int32_t vocabulary() const override { return real_->vocabulary(); }
  int32_t max_scored_rows() const override { return real_->max_scored_rows(); }
  int32_t adapter_slots() const override { return real_->adapter_slots(); }
  int32_t FindAdapter(std::string_view digest) const override { return real_->FindAdapter(digest); }
  std::string_view AdapterIn(int32_t slot) const override { return real_->AdapterIn(slot); }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    return real_->SetAdapter(slot, std::move(adapter));
  }
  int32_t hidden_size() const override { return real_->hidden_size(); }
  int32_t feature_size() const override { return real_->feature_size(); }
  bool features_on_host() const override { return real_->features_on_host(); }
  const Buffer& kv_pool() const override { return real_->kv_pool(); }
  const Model& model() const override { return real_->model(); }
  TensorView logits() const override { return real_->logits(); }
  Stream* stream() const override { return real_->stream(); }
  Result<Ticket> Launch(const StepInput& input) override {
    pulse_->StepBegins(static_cast<int64_t>(input.batch.tokens.size()), clock_->Now());
    auto ticket = real_->Launch(input);
    if (!ticket) pulse_->StepFailed();
    return ticket;
  }
  Result<StepResult> Collect(Ticket ticket) override {
    auto result = real_->Collect(ticket);
    pulse_->StepEnds(clock_->Now());
    return result;
  }
  bool Done(Ticket ticket) override { return real_->Done(ticket); }

 private:
  const std::unique_ptr<ServingExecutor> real_;
  Pulse* const pulse_;
  const Clock* const clock_;
};

// Runs from its construction to its end. `links` must take Send from any thread (net/ does).
class PulseThread {
 public:
  PulseThread(Pulse* pulse, LinkSender<v1::WorkerMessage>* links, const Clock* clock);
  ~PulseThread();

 private:
  void Run();

  Pulse* const pulse_;
  LinkSender<v1::WorkerMessage>* const links_;
  const Clock* const clock_;
  std::mutex mutex_;
  std::condition_variable wake_;
  bool stop_ = false;
  Thread thread_;
};

}  // namespace aisp
