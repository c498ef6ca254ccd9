// Which compiled constraints are kept, and for which tenant.
#include "server/constraint_pool.h"

#include <gtest/gtest.h>

#include <future>
#include <string>

#include "proto/tenant.h"
#include "server/served_model.h"

namespace aisp {
namespace {

v1::Constraint Pattern(const std::string& text) {
  v1::Constraint out;
  out.set_kind(v1::Constraint::REGEX);
  out.set_text(text);
  return out;
}

class Constraints : public ::testing::Test {
 protected:
  Constraints() {
    Config config;
    config.model.path = AISP_SOURCE_DIR "/models/story-7m";
    auto loaded = LoadServedModel(config);
    EXPECT_TRUE(loaded);
    model_ = std::move(*loaded);
    pool_ = std::make_unique<ConstraintPool>(model_->tokenizer.get(), model_->vocabulary,
                                             ConstraintPool::Limits{.max_kept = 4});
  }
  void Compile(const std::string& tenant, const std::string& pattern) {
    EXPECT_TRUE(pool_->Get(Pattern(pattern), tenant));
  }
  bool Keeps(const std::string& pattern) { return pool_->Keeps(Pattern(pattern)); }

  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<ConstraintPool> pool_;
};

TEST_F(Constraints, WhoHasMostForgetsItsOwn) {
  Compile("victim", "v");
  for (int i = 0; i < 10; ++i) Compile("hostile", "h" + std::to_string(i));
  EXPECT_EQ(pool_->kept(), 4u);
  EXPECT_TRUE(Keeps("v"));
  EXPECT_TRUE(Keeps("h9"));
  EXPECT_FALSE(Keeps("h6"));
}

TEST_F(Constraints, OfATenantAloneTheOneUsedLeastLatelyGoes) {
  for (int i = 0; i < 4; ++i) Compile("a", std::to_string(i));
  Compile("a", "0");
  Compile("a", "4");
  EXPECT_TRUE(Keeps("0"));
  EXPECT_FALSE(Keeps("1"));
}

TEST_F(Constraints, AGuideIsCompiledForItsTenant) {
  v1::GenerateRequest request;
  *request.mutable_sampling()->mutable_constraint() = Pattern("g+");
  TenantToWire({.name = "victim"}, request.mutable_tenant());
  std::promise<bool> made;
  const auto at_once =
      pool_->Guide(request, [&](const auto& guide) { made.set_value(bool(guide)); });
  ASSERT_TRUE(at_once);
  EXPECT_EQ(*at_once, nullptr);
  EXPECT_TRUE(made.get_future().get());
  for (int i = 0; i < 10; ++i) Compile("hostile", "h" + std::to_string(i));
  const auto kept = pool_->Guide(request, [](const auto&) { ADD_FAILURE() << "it was forgotten"; });
  ASSERT_TRUE(kept);
  EXPECT_NE(*kept, nullptr);
}

}  // namespace
}  // namespace aisp
