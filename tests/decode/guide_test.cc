// Constrained requests whose guide is compiled elsewhere: they wait without delaying a step, and
// whatever ends them in the meantime ends them once.
#include <gtest/gtest.h>

#include <vector>

#include "tests/decode/any_token_guide.h"
#include "tests/worker/role_rig.h"

namespace aisp {
namespace {

struct Compiler {
  std::vector<DecodeOptions::OnGuide> waiting;
  Status full;

  RigOptions Options() {
    RigOptions options;
    options.decode.guides =
        [this](const v1::GenerateRequest&,
               DecodeOptions::OnGuide later) -> Result<std::shared_ptr<DrawGuide>> {
      if (!full) return tl::unexpected(full.error());
      waiting.push_back(std::move(later));
      return std::shared_ptr<DrawGuide>();
    };
    return options;
  }
};

v1::GenerateRequest Constrained(const RoleRig& rig, uint64_t id) {
  v1::GenerateRequest request = rig.MakeRequest(id, MakePrompt(40, id), 4);
  request.clear_prefill();
  request.mutable_sampling()->mutable_constraint()->set_kind(v1::Constraint::JSON_OBJECT);
  return request;
}

TEST(Guide, OthersRunWhileOneWaitsForItsGuide) {
  Compiler compiler;
  RoleRig rig(compiler.Options());
  rig.Attach();
  rig.router->Generate("d", Constrained(rig, 1));
  rig.router->Generate("d", rig.MakeRequest(2, MakePrompt(30, 2), 4));
  rig.ExpectAnswer(2, MakePrompt(30, 2), 4);
  EXPECT_FALSE(rig.Finished(1));
  ASSERT_EQ(compiler.waiting.size(), 1u);
  compiler.waiting[0](std::make_shared<AnyTokenGuide>());
  rig.ExpectAnswer(1, MakePrompt(40, 1), 4);
  rig.ExpectAllBlocksBack();
}

TEST(Guide, ARefusedGuideIsTheRequestsError) {
  Compiler compiler;
  RoleRig rig(compiler.Options());
  rig.Attach();
  rig.router->Generate("d", Constrained(rig, 1));
  rig.RunFor(std::chrono::milliseconds(2));
  ASSERT_EQ(compiler.waiting.size(), 1u);
  compiler.waiting[0](InvalidArgument("no text matches"));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  EXPECT_EQ(rig.router->answers[1].error.message(), "no text matches");
  EXPECT_FALSE(rig.router->answers[1].error.retryable());
  compiler.full = ResourceExhausted("64 constraints wait");
  rig.router->Generate("d", Constrained(rig, 2));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(2); }));
  EXPECT_EQ(rig.router->answers[2].error.code(), static_cast<int>(Code::kResourceExhausted));
}

TEST(Guide, ACancelledRequestIgnoresItsGuide) {
  Compiler compiler;
  RoleRig rig(compiler.Options());
  rig.Attach();
  rig.router->Generate("d", Constrained(rig, 1));
  rig.RunFor(std::chrono::milliseconds(2));
  rig.router->Cancel("d", 1);
  rig.RunFor(std::chrono::milliseconds(2));
  // The id is used again: the first request's guide is not used for the second.
  rig.router->Generate("d", Constrained(rig, 1));
  rig.RunFor(std::chrono::milliseconds(2));
  ASSERT_EQ(compiler.waiting.size(), 2u);
  compiler.waiting[0](InvalidArgument("the first one's"));
  rig.RunFor(std::chrono::milliseconds(2));
  EXPECT_FALSE(rig.Finished(1));
  compiler.waiting[1](InvalidArgument("the second one's"));
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }));
  EXPECT_EQ(rig.router->answers[1].error.message(), "the second one's");
  EXPECT_EQ(rig.router->answers[1].finishes, 1);
}

TEST(Guide, ADeadlineStrikesWhileItWaits) {
  Compiler compiler;
  RoleRig rig(compiler.Options());
  rig.Attach();
  v1::GenerateRequest request = Constrained(rig, 1);
  request.set_timeout_ms(5);
  rig.router->Generate("d", request);
  ASSERT_TRUE(rig.RunUntil([&] { return rig.Finished(1); }, 200));
  EXPECT_EQ(rig.router->answers[1].error.code(), static_cast<int>(Code::kDeadlineExceeded));
  compiler.waiting[0](std::make_shared<AnyTokenGuide>());
  rig.RunFor(std::chrono::milliseconds(2));
  EXPECT_EQ(rig.router->answers[1].finishes, 1);
}

TEST(Guide, ALostRouterAndADrainEndTheWait) {
  Compiler compiler;
  RoleRig rig(compiler.Options());
  rig.Attach();
  rig.router->Generate("d", Constrained(rig, 1));
  rig.RunFor(std::chrono::milliseconds(2));
  rig.decode->decode->BeginDrain();
  rig.RunFor(std::chrono::milliseconds(2));
  ASSERT_FALSE(rig.router->drainings.empty());
  ASSERT_EQ(rig.router->drainings.back().not_started_size(), 1);
  EXPECT_EQ(rig.router->drainings.back().not_started(0), 1u);
  EXPECT_FALSE(rig.decode->decode->Drained());
  rig.router_links.BreakOf(&rig.decode->inbox);
  rig.RunFor(std::chrono::milliseconds(2));
  EXPECT_TRUE(rig.decode->decode->Drained());
  compiler.waiting[0](std::make_shared<AnyTokenGuide>());
}

TEST(Guide, AGuideMayComeWhenItsWorkerIsGone) {
  Compiler compiler;
  {
    RoleRig rig(compiler.Options());
    rig.Attach();
    rig.router->Generate("d", Constrained(rig, 1));
    rig.RunFor(std::chrono::milliseconds(2));
  }
  ASSERT_EQ(compiler.waiting.size(), 1u);
  compiler.waiting[0](std::make_shared<AnyTokenGuide>());
}

}  // namespace
}  // namespace aisp
