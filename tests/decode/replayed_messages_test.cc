// Messages between workers that are repeated, or late: the tokens are right, nothing is written
// where it is not granted, and every block is freed.
#include <gtest/gtest.h>

#include "common/random.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

using std::chrono::milliseconds;

class ReplayedMessages : public ::testing::TestWithParam<bool> {
 protected:
  void Start() {
    RigOptions options;
    options.owner_copies = GetParam();
    options.decode.lease_base = milliseconds(100);
    options.decode.prefill_silence_limit = milliseconds(100);
    rig_ = std::make_unique<RoleRig>(options);
    rig_->Attach();
    prompt_ = MakePrompt(101, 5);
    rig_->router->Generate("d", rig_->MakeRequest(1, prompt_, 4));
    rig_->ExpectAnswer(1, prompt_, 4);
  }
  v1::GenerateRequest Pulling(uint64_t id, const std::vector<TokenId>& prompt) const {
    v1::GenerateRequest request = rig_->MakePull(id, prompt, 4);
    request.mutable_pull()->set_begin_within_us(100'000);
    request.mutable_pull()->set_limit_us(200'000);
    return request;
  }
  void Listen(double keep, SplitMix64* random) {
    rig_->kv_links.on_up = [this, keep, random](v1::DecodeToPrefill& message) {
      up_.push_back(message);
      return message.has_hello() || random->Below(1000) >= keep * 1000;
    };
    rig_->kv_links.on_down = [this, keep, random](v1::PrefillToDecode& message) {
      down_.push_back(message);
      return message.has_hello() || random->Below(1000) >= keep * 1000;
    };
  }
  // Repeats some of the earlier messages, in any order, on the current link.
  void SayAgain(SplitMix64& random) {
    const LinkId link(static_cast<uint64_t>(rig_->kv_links.dials()));
    for (int i = 0; i < 3; ++i) {
      if (!up_.empty())
        rig_->prefills[0]->prefill->reader_links()->OnMessage(link, up_[random.Below(up_.size())]);
      if (!down_.empty())
        rig_->decode->decode->peer_links()->OnMessage(link, down_[random.Below(down_.size())]);
    }
  }
  void Run(double lost, uint64_t seed) {
    SCOPED_TRACE(seed);
    SplitMix64 random(seed);
    up_.clear();
    down_.clear();
    Start();
    Listen(lost, &random);
    auto longer = prompt_;
    longer.insert(longer.end(), 40, static_cast<TokenId>(seed));
    const auto other = MakePrompt(90, seed);
    rig_->decode->engine->blocks().ClearCache();
    rig_->prefills[0]->transport->hold = random.Below(2) == 0;
    rig_->router->Generate("d", Pulling(2, longer));
    rig_->router->Generate("d", rig_->MakeRequest(3, other, 4));
    for (int turn = 0; turn < 60; ++turn) {
      rig_->Turn();
      SayAgain(random);
      rig_->clock.Advance(rig_->tick);
      if (turn == 40) {
        rig_->prefills[0]->transport->hold = false;
        rig_->prefills[0]->transport->Land();
      }
    }
    rig_->ExpectAnswer(2, longer, 4);
    rig_->ExpectAnswer(3, other, 4);
    rig_->kv_links.on_up = nullptr;
    rig_->kv_links.on_down = nullptr;
    // What was lost in transit is requested again on the next link.
    rig_->kv_links.BreakAll();
    rig_->RunFor(milliseconds(2500));
    rig_->ExpectAllBlocksBack();
  }

  std::unique_ptr<RoleRig> rig_;
  std::vector<TokenId> prompt_;
  std::vector<v1::DecodeToPrefill> up_;
  std::vector<v1::PrefillToDecode> down_;
};

TEST_P(ReplayedMessages, ChangeNothing) {
  for (uint64_t seed = 1; seed <= 25; ++seed) Run(0, seed);
}

TEST_P(ReplayedMessages, NorDoLateOnes) {
  for (uint64_t seed = 1; seed <= 25; ++seed) Run(0.3, seed);
}

INSTANTIATE_TEST_SUITE_P(Lanes, ReplayedMessages, ::testing::Bool(), [](const auto& lane) {
  return lane.param ? "TheirSideCopies" : "TheWriterCopies";
});

}  // namespace
}  // namespace aisp
