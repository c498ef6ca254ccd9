// Prefixes from another worker's cache: the tokens are those of one engine, nothing that the holder
// has is computed again, and whatever happens on the way the request goes on and every block comes
// back.
#include <gtest/gtest.h>

#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

// p0 holds the KV of `prompt`, up to whole blocks; d holds nothing, and prefills by itself.
class PrefixPull : public ::testing::Test {
 protected:
  void Start(const RigOptions& options = {}) {
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
    rig_->router->Generate("d", rig_->MakeRequest(kFirst, prompt_, 1));
    rig_->ExpectAnswer(kFirst, prompt_, 1);
    rig_->decode->engine->blocks().ClearCache();
    computed_before_ = rig_->decode->executor->rows_computed();
    computed_by_holder_ = rig_->prefills[0]->executor->rows_computed();
  }
  // The next turn: the prompt and what came after it.
  std::vector<TokenId> Longer(int more, uint64_t seed = 77) const {
    std::vector<TokenId> tokens = prompt_;
    const auto tail = MakePrompt(more, seed);
    tokens.insert(tokens.end(), tail.begin(), tail.end());
    return tokens;
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    v1::GenerateRequest request = rig_->MakeRequest(id, prompt, 8);
    request.clear_prefill();
    request.clear_prefill_fallbacks();
    v1::PrefixSource* pull = request.mutable_pull();
    pull->mutable_holder()->set_worker_id("p0");
    pull->mutable_holder()->set_kv_address("p0");
    pull->set_tokens(static_cast<uint32_t>(prompt.size()));
    pull->set_begin_within_us(200'000);
    pull->set_limit_us(1'000'000);
    return request;
  }
  v1::PrefixPull Pulled(uint64_t id) const {
    return rig_->router->answers.at(id).timings.at(0).pull();
  }
  uint64_t Computed() const { return rig_->decode->executor->rows_computed() - computed_before_; }
  void ExpectAllBack() {
    rig_->RunFor(milliseconds(50));
    rig_->ExpectAllBlocksBack();
  }

  static constexpr uint64_t kFirst = 1000;
  std::vector<TokenId> prompt_ = MakePrompt(101, 5);
  std::unique_ptr<RoleRig> rig_;
  uint64_t computed_before_ = 0;
  uint64_t computed_by_holder_ = 0;
};

TEST_F(PrefixPull, WhatAnotherWorkerHoldsIsNotComputedAgain) {
  Start();
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  EXPECT_EQ(Pulled(1).tokens(), 96u);
  EXPECT_EQ(Pulled(1).holder(), "p0");
  EXPECT_EQ(rig_->router->answers.at(1).timings.at(0).cached_tokens(), 96u);
  EXPECT_EQ(Computed(), 141u - 96u + 7u);
  EXPECT_EQ(rig_->prefills[0]->executor->rows_computed(), computed_by_holder_);
  ExpectAllBack();
}

TEST_F(PrefixPull, AWorkerOfAnotherRoleGivesPrefixesAway) {
  Start();
  rig_->prefills[0]->prefill->BeginDrain();
  rig_->RunFor(milliseconds(5));
  rig_->prefills[0]->prefill->StandBy();
  rig_->RunFor(milliseconds(5));
  const auto longer = Longer(40);
  rig_->router->Generate("d", Pulling(1, longer));
  rig_->ExpectAnswer(1, longer, 8);
  EXPECT_EQ(Pulled(1).result(), v1::PrefixPull::FILLED);
  ExpectAllBack();
}

}  // namespace
}  // namespace aisp
