// TimedExecutor: gives another executor's steps a duration in simulated time. The worker's loop
// asks when the oldest step is done and collects it then; steps in flight run one after the other,
// as on one device.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>

#include "engine/executor.h"
#include "tests/support/sim_world.h"

namespace aisp {

// Prompts of only one of these tokens: a step with such rows fails, or ends its process.
inline constexpr TokenId kSimStepPoisonToken = 996;
inline constexpr TokenId kSimProcessPoisonToken = 997;
inline constexpr const char* kSimStepPoison = "this step cannot be computed";

class TimedExecutor final : public Executor {
 public:
  TimedExecutor(SimWorld* world, Executor* executor, double base_ms, double token_ms)
      : world_(world), executor_(executor), base_ms_(base_ms), token_ms_(token_ms) {}

  int max_depth() const override { return executor_->max_depth(); }
  const KvLayout& kv_layout() const override { return executor_->kv_layout(); }
  int32_t max_context() const override { return executor_->max_context(); }
  int32_t max_batch_tokens() const override { return executor_->max_batch_tokens(); }
  int32_t max_slots() const override { return executor_->max_slots(); }
  int32_t max_draws() const override { return executor_->max_draws(); }
  int32_t vocabulary() const override { return executor_->vocabulary(); }
  bool copies_blocks() const override { return executor_->copies_blocks(); }
  int32_t max_scored_rows() const override { return executor_->max_scored_rows(); }
  int32_t hidden_size() const override { return executor_->hidden_size(); }
  int32_t feature_size() const override { return executor_->feature_size(); }
  bool features_on_host() const override { return executor_->features_on_host(); }
  int32_t max_kept_features() const override { return executor_->max_kept_features(); }

  Result<Ticket> Launch(const StepInput& input) override {
    if (HasRunOf(kSimStepPoisonToken, input)) {
      ++happened["step that cannot be computed"];
      return InvalidArgument(kSimStepPoison);
    }
    if (HasRunOf(kSimProcessPoisonToken, input)) {
      ends_process();
      return Internal("nobody hears this");
    }
    Result<Ticket> ticket = executor_->Launch(input);
    if (!ticket) return ticket;
    const double ms = base_ms_ + token_ms_ * static_cast<double>(input.batch.tokens.size());
    const Instant start =
        done_at_.empty() ? world_->Now() : std::max(world_->Now(), done_at_.back());
    for (size_t i = 1; i < input.samples.size(); ++i)
      drafted_rows_ += input.samples[i].slot == input.samples[i - 1].slot ? 1 : 0;
    const bool is_long = Happens(long_step_chance, "long step");
    begins(static_cast<int64_t>(input.batch.tokens.size()));
    done_at_.push_back(start + FromMs(ms * world_->Uniform(0.9, 1.3)) +
                       (is_long ? world_->Ms(500, 4000) : Duration{}));
    return ticket;
  }
  Result<StepResult> Collect(Ticket ticket) override {
    done_at_.pop_front();
    ends();
    Result<StepResult> result = executor_->Collect(ticket);
    if (!result) return result;
    for (SampledToken& token : result->tokens) {
      if (Happens(row_failure_chance, "row failed"))
        token.status = Internal("this row cannot be drawn");
    }
    return result;
  }

  // While `faults` is set, the draw of a row may fail, and a step may take seconds.
  std::function<bool()> faults = [] { return false; };
  std::function<void()> ends_process = [] {};
  // Called when a step with this many rows was given to the device, and when the oldest was
  // collected.
  std::function<void(int64_t)> begins = [](int64_t) {};
  std::function<void()> ends = [] {};
  double row_failure_chance = 0;
  double long_step_chance = 0;
  std::map<std::string, uint64_t> happened;

  // Draws after another one of the same sequence and step.
  uint64_t drafted_rows() const { return drafted_rows_; }
  size_t steps_in_flight() const { return done_at_.size(); }
  // When the oldest step in flight is done; kNever: none.
  Instant done_at() const { return done_at_.empty() ? kNever : done_at_.front(); }

 private:
  // Four in a row of one sequence do not occur by chance.
  static bool HasRunOf(TokenId token, const StepInput& input) {
    return std::ranges::any_of(input.batch.sequences, [&](const SequenceRows& s) {
      const auto rows = input.batch.tokens.subspan(static_cast<size_t>(s.row_begin),
                                                   static_cast<size_t>(s.num_rows));
      return std::search_n(rows.begin(), rows.end(), 4, token) != rows.end();
    });
  }
  bool Happens(double chance, const std::string& what) {
    if (chance <= 0 || !faults() || !world_->Chance(chance)) return false;
    ++happened[what];
    return true;
  }

  SimWorld* const world_;
  Executor* const executor_;
  const double base_ms_;
  const double token_ms_;
  std::deque<Instant> done_at_;
  uint64_t drafted_rows_ = 0;
};

}  // namespace aisp
