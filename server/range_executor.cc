#include "server/range_executor.h"

#include <fmt/format.h>

#include <utility>

namespace aisp {
namespace {

class Range {
 public:
  Range(const ProfilerRanges& ranges, const char* name) : ranges_(ranges) { ranges_.push(name); }
  Range(const Range&) = delete;
  Range& operator=(const Range&) = delete;
  ~Range() { ranges_.pop(); }

 private:
  const ProfilerRanges& ranges_;
};

class RangeExecutor final : public ServingExecutor {
 public:
  RangeExecutor(std::unique_ptr<ServingExecutor> inner, const ProfilerRanges& ranges)
      : inner_(std::move(inner)), ranges_(ranges) {}

  int max_depth() const override { return inner_->max_depth(); }
  const KvLayout& kv_layout() const override { return inner_->kv_layout(); }
  int32_t max_context() const override { return inner_->max_context(); }
  int32_t max_batch_tokens() const override { return inner_->max_batch_tokens(); }
  int32_t max_slots() const override { return inner_->max_slots(); }
  int32_t max_draws() const override { return inner_->max_draws(); }
  std::vector<SlowPathCount> slow_paths() const override { return inner_->slow_paths(); }
  int32_t vocabulary() const override { return inner_->vocabulary(); }
  int32_t max_scored_rows() const override { return inner_->max_scored_rows(); }
  int32_t hidden_size() const override { return inner_->hidden_size(); }
  int32_t feature_size() const override { return inner_->feature_size(); }
  bool features_on_host() const override { return inner_->features_on_host(); }
  int32_t adapter_slots() const override { return inner_->adapter_slots(); }
  int32_t FindAdapter(std::string_view digest) const override {
    return inner_->FindAdapter(digest);
  }
  std::string_view AdapterIn(int32_t slot) const override { return inner_->AdapterIn(slot); }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    return inner_->SetAdapter(slot, std::move(adapter));
  }
  const Buffer& kv_pool() const override { return inner_->kv_pool(); }
  const Model& model() const override { return inner_->model(); }
  TensorView logits() const override { return inner_->logits(); }
  Stream* stream() const override { return inner_->stream(); }

  Result<Ticket> Launch(const StepInput& input) override {
    size_t decode_rows = 0;
    for (const SequenceRows& rows : input.batch.sequences)
      decode_rows += rows.num_rows == 1 ? 1 : 0;
    fmt::memory_buffer name;
    fmt::format_to(std::back_inserter(name), "step {}+{}", input.batch.tokens.size() - decode_rows,
                   decode_rows);
    name.push_back('\0');
    const Range range(ranges_, name.data());
    return inner_->Launch(input);
  }
  Result<StepResult> Collect(Ticket ticket) override {
    const Range range(ranges_, "collect");
    return inner_->Collect(ticket);
  }

 private:
  const std::unique_ptr<ServingExecutor> inner_;
  const ProfilerRanges ranges_;
};

}  // namespace

std::unique_ptr<ServingExecutor> WithProfilerRanges(std::unique_ptr<ServingExecutor> executor,
                                                    const ProfilerRanges& ranges) {
  return std::make_unique<RangeExecutor>(std::move(executor), ranges);
}

}  // namespace aisp
