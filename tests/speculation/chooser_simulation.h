// The chooser with a simulated machine and drafts of given acceptance rates. Rates are expected
// tokens per expected time, so they contain no luck; the chooser sees noisy samples like a real
// machine's.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <memory>
#include <numbers>
#include <string>
#include <utility>
#include <vector>

#include "common/random.h"
#include "speculation/speculator.h"

namespace aisp {

struct World {
  std::string name;
  std::function<double(int32_t rows)> us;  // step time
  int32_t batch = 1;
  int32_t most = 8;  // num_speculative_tokens
  // Acceptance rate by position, given those before; the last covers all later positions.
  std::vector<double> acceptance;
  std::vector<double> others{};  // the same for every second sequence; empty: as `acceptance`
  double token_us = 0;           // proposer time per token position, for all sequences
  double first_us = 0;           // proposer time per call
  bool at_once = false;          // all draft tokens are made at once
  double held_up_us = 0;         // extra time of the first draft of each length
  double confidence = -1;        // reported for every token; -1: the true rate
  double noise = 0.05;           // standard deviation of the log of a step's time
  double spikes = 0.01;          // fraction of steps that take three times as long
  bool shared = false;           // with so much other load that a step hardly shows its cost
  std::function<double(int)> load = [](int) { return 1.0; };  // factor of all times in step i

  // A device that runs ahead: plain steps are launched before the last step's tokens are known.
  bool ahead = false;
  double wait_us = 0;            // extra time of a plain step that waited for tokens
  double take_up_us = 0;         // extra time of a step that the proposer follows
  std::vector<int32_t> sizes{};  // sizes that steps are padded to; empty: no padding

  double Acceptance(int32_t slot, int32_t at) const {
    const auto& all = slot % 2 == 1 && !others.empty() ? others : acceptance;
    return all[std::min(static_cast<size_t>(at), all.size() - 1)];
  }
  double Expected(int32_t slot, int32_t rows) const {
    double tokens = 1, together = 1;
    for (int32_t at = 0; at < rows; ++at) tokens += together *= Acceptance(slot, at);
    return tokens;
  }
  double StepUs(int32_t rows) const {
    const auto size = std::lower_bound(sizes.begin(), sizes.end(), rows);
    return us(size == sizes.end() ? rows : *size);
  }
  // Tokens per microsecond.
  double FixedRate(int32_t length) const {
    double tokens = 0;
    for (int32_t slot = 0; slot < batch; ++slot) tokens += Expected(slot, length);
    const double told = length > 0 ? take_up_us : 0;
    return tokens / (StepUs(batch * (1 + length)) + ProposeUs(length) + told);
  }
  double ProposeUs(int32_t length) const { return length > 0 ? first_us + length * token_us : 0; }
  double BestFixed() const {
    double best = 0;
    for (int32_t length = 0; length <= most; ++length) best = std::max(best, FixedRate(length));
    return best;
  }
};

class SimulatedProposer final : public Proposer {
 public:
  SimulatedProposer(const World* world, ManualClock* clock) : world_(world), clock_(clock) {}
  std::string_view name() const override { return "simulated"; }
  bool costly() const override { return world_->token_us > 0 || world_->at_once; }
  bool at_once() const override { return world_->at_once; }
  Status Propose(std::span<const DraftContext> contexts, std::span<TokenDraft> drafts) override {
    longest = 0;
    for (size_t i = 0; i < contexts.size(); ++i) {
      for (int32_t at = 0; at < contexts[i].limit; ++at) {
        const double truth = world_->Acceptance(contexts[i].prompt_tokens, at);
        const double sure = world_->confidence < 0 ? truth : world_->confidence;
        drafts[i].Add(7, static_cast<float>(sure));
      }
      longest = std::max(longest, contexts[i].limit);
    }
    const auto length = static_cast<size_t>(longest);
    if (made_.size() <= length) made_.resize(length + 1, false);
    const double held_up = made_[length] ? 0 : world_->held_up_us;
    made_[length] = true;
    clock_->Advance(Duration(static_cast<int64_t>((world_->ProposeUs(longest) + held_up) * 1e3)));
    return {};
  }
  void Ended(const DraftContext&) override {}
  int32_t longest = 0;

 private:
  const World* const world_;
  ManualClock* const clock_;
  std::vector<bool> made_;  // by length
};

class Simulation {
 public:
  static constexpr int kTokensOfASequence = 200;

  Simulation(const World& world, uint64_t seed) : world_(world), random_(seed) {
    auto proposer = std::make_unique<SimulatedProposer>(&world_, &clock_);
    proposer_ = proposer.get();
    speculator_ = std::make_unique<Speculator>(SpeculatorOptions{.num_tokens = world.most},
                                               std::move(proposer), &clock_);
    speculator_->RunsOn({world.sizes, world.ahead});
    for (int32_t i = 0; i < world.batch; ++i) {
      Begin(i);
      left_.back() = 1 + static_cast<int>(random_.Below(kTokensOfASequence));
    }
  }

  // Tokens per microsecond over the next `steps`.
  double Run(int steps) {
    double tokens = 0, us = 0;
    for (int i = 0; i < steps; ++i) {
      const auto [brought, took] = Step(world_.load(step_++));
      tokens += brought;
      us += took;
    }
    return tokens / us;
  }
  void SetAcceptance(std::vector<double> acceptance) { world_.acceptance = std::move(acceptance); }
  // The same until every sequence would have `of_each` more tokens.
  double RunTokens(double of_each) {
    double tokens = 0, us = 0;
    while (tokens < of_each * world_.batch) {
      const auto [brought, took] = Step(world_.load(step_++));
      tokens += brought;
      us += took;
    }
    return tokens / us;
  }

 private:
  void Begin(int32_t slot) {
    ids_.resize(static_cast<size_t>(world_.batch));
    left_.resize(static_cast<size_t>(world_.batch));
    ids_[static_cast<size_t>(slot)] = SequenceId(++next_);
    left_[static_cast<size_t>(slot)] = kTokensOfASequence;
  }

  double Noise() {
    if (world_.shared) {
      const double u = random_.Uniform();
      return u < 0.3 ? 0.15 + u : 0.7 + 1.17 * random_.Uniform();
    }
    const double gauss = std::sqrt(-2 * std::log(1 - random_.Uniform())) *
                         std::cos(2 * std::numbers::pi * random_.Uniform());
    return std::exp(world_.noise * gauss) * (random_.Uniform() < world_.spikes ? 3 : 1);
  }

  // Expected tokens and microseconds, without other load.
  std::pair<double, double> Step(double load) {
    if (world_.ahead && plain_left_ > 0) {
      --plain_left_;
      return {world_.batch, Take(world_.batch, 0, 0, load)};
    }
    std::vector<SpeculativeSequence> sequences(ids_.size());
    for (size_t i = 0; i < ids_.size(); ++i) {
      sequences[i].context.sequence = ids_[i];
      sequences[i].context.limit = world_.most;
      sequences[i].context.prompt_tokens = static_cast<int32_t>(i);
    }
    VerifyStep shape;
    shape.rows = shape.sequences = world_.batch;
    shape.context_tokens = 1000 * world_.batch;
    shape.max_drafts = world_.most * world_.batch;
    proposer_->longest = 0;
    speculator_->Propose(sequences, shape);
    speculator_->Choose(sequences, shape);
    int32_t rows = world_.batch;
    double tokens = 0;
    for (size_t i = 0; i < ids_.size(); ++i) {
      rows += sequences[i].rows;
      tokens += world_.Expected(static_cast<int32_t>(i), sequences[i].rows);
    }
    const bool plain = rows == world_.batch;
    plain_left_ = speculator_->plain_steps() - 1;
    const double us = Take(rows, plain && world_.ahead ? world_.wait_us : 0,
                           world_.ProposeUs(proposer_->longest), load);
    for (size_t i = 0; i < ids_.size(); ++i) Verify(static_cast<int32_t>(i), sequences[i]);
    return {tokens, us};
  }

  double Take(int32_t rows, double waited, double proposed, double load) {
    const double us = world_.StepUs(rows) + waited;
    const auto took = Duration(static_cast<int64_t>(us * load * Noise() * 1e3));
    clock_.Advance(took);
    speculator_->StepTook(rows, rows - world_.batch, 1000 * rows, took);
    return us + proposed + world_.take_up_us;
  }

  void Verify(int32_t slot, const SpeculativeSequence& s) {
    const auto drafted = static_cast<int32_t>(s.draft.tokens.size());
    int32_t stand = 0;
    while (stand < drafted && random_.Uniform() < world_.Acceptance(slot, stand)) ++stand;
    const int32_t accepted = std::min(stand, s.rows);
    if (drafted > 0) speculator_->Verified(s.context.sequence, s.rows, accepted, stand > s.rows);
    int32_t& left = left_[static_cast<size_t>(slot)];
    left -= 1 + accepted;
    if (left > 0) return;
    speculator_->Ended(s.context);
    Begin(slot);
  }

  World world_;
  SplitMix64 random_;
  ManualClock clock_;
  SimulatedProposer* proposer_ = nullptr;
  std::unique_ptr<Speculator> speculator_;
  std::vector<SequenceId> ids_;
  std::vector<int> left_;
  uint64_t next_ = 0;
  int plain_left_ = 0, step_ = 0;
};

}  // namespace aisp
