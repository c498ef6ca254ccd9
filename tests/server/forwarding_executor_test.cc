// The engine sees the same properties of a wrapped executor as without the wrapper.
#include "server/forwarding_executor.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "server/pulse_thread.h"
#include "server/range_executor.h"
#include "worker/pulse.h"

namespace aisp {
namespace {

// Returns a value other than Executor's default from every method.
class Unusual final : public ServingExecutor {
 public:
  int max_depth() const override { return 2; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return 11; }
  int32_t max_batch_tokens() const override { return 12; }
  int32_t max_slots() const override { return 13; }
  int32_t max_draws() const override { return 14; }
  std::vector<SlowPathCount> slow_paths() const override { return std::vector<SlowPathCount>(2); }
  bool applies_masks() const override { return true; }
  int32_t vocabulary() const override { return 15; }
  int32_t max_scored_rows() const override { return 16; }
  int32_t hidden_size() const override { return 17; }
  int32_t feature_size() const override { return 18; }
  bool features_on_host() const override { return false; }
  int32_t max_kept_features() const override { return 19; }
  std::vector<int32_t> step_sizes() const override { return {1, 2, 20}; }
  int32_t adapter_slots() const override { return 21; }
  int32_t FindAdapter(std::string_view) const override { return 22; }
  std::string_view AdapterIn(int32_t) const override { return "an adapter"; }
  Status SetAdapter(int32_t, PackedAdapter) override { return {}; }
  Result<Ticket> Launch(const StepInput&) override { return Ticket(23); }
  Result<StepResult> Collect(Ticket) override {
    StepResult result;
    result.captured = true;
    return result;
  }
  bool Done(Ticket) override { return false; }
  const Buffer& kv_pool() const override { return pool_; }
  const Model& model() const override { std::abort(); }
  TensorView logits() const override { return {}; }
  Stream* stream() const override { return nullptr; }

 private:
  KvLayout layout_;
  Buffer pool_;
};

void ExpectUnusual(ServingExecutor& e) {
  EXPECT_EQ(e.max_depth(), 2);
  EXPECT_EQ(e.max_context(), 11);
  EXPECT_EQ(e.max_batch_tokens(), 12);
  EXPECT_EQ(e.max_slots(), 13);
  EXPECT_EQ(e.max_draws(), 14);
  EXPECT_EQ(e.slow_paths().size(), 2u);
  EXPECT_TRUE(e.applies_masks());
  EXPECT_EQ(e.vocabulary(), 15);
  EXPECT_EQ(e.max_scored_rows(), 16);
  EXPECT_EQ(e.hidden_size(), 17);
  EXPECT_EQ(e.feature_size(), 18);
  EXPECT_FALSE(e.features_on_host());
  EXPECT_EQ(e.max_kept_features(), 19);
  EXPECT_EQ(e.step_sizes(), (std::vector<int32_t>{1, 2, 20}));
  EXPECT_EQ(e.adapter_slots(), 21);
  EXPECT_EQ(e.FindAdapter(""), 22);
  EXPECT_EQ(e.AdapterIn(0), "an adapter");
  EXPECT_TRUE(e.SetAdapter(0, {}));
  EXPECT_EQ(e.Launch({})->value, 23u);
  EXPECT_TRUE(e.Collect(Ticket(23))->captured);
  EXPECT_FALSE(e.Done(Ticket(23)));
}

TEST(ForwardingExecutor, WithAPulseItIsTheSame) {
  SteadyClock clock;
  Pulse pulse({});
  PulseExecutor executor(std::make_unique<Unusual>(), &pulse, &clock);
  ExpectUnusual(executor);
}

TEST(ForwardingExecutor, WithProfilerRangesItIsTheSame) {
  const ProfilerRanges ranges{.push = [](const char*) {}, .pop = [] {}};
  const auto executor = WithProfilerRanges(std::make_unique<Unusual>(), ranges);
  ExpectUnusual(*executor);
}

}  // namespace
}  // namespace aisp
