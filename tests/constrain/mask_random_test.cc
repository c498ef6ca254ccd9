// Masks and matchers agree under random schemas, and no allowed beginning is a dead end.
#include "tests/constrain/mask_harness.h"
#include "tests/constrain/random_schema.h"

namespace aisp {
namespace {

TEST(Mask, SaysWhatTheMatcherSaysUnderRandomSchemas) {
  int enforced = 0;
  for (uint32_t seed = 1; seed <= 2000; ++seed) {
    const std::string schema = RandomSchema(seed).Any(2);
    auto compiled = CompileSchema(schema, {}, {});
    if (!compiled || compiled->grammar == nullptr || !compiled->grammar->HasValues()) continue;
    const auto constraint = MakeJsonConstraint(std::move(compiled->grammar), Whitespace::kFlexible,
                                               Vocabulary(Pieces()));
    ++enforced;
    CompareMasks(constraint.get(), schema, seed);
    ASSERT_FALSE(HasFatalFailure()) << "seed " << seed;
  }
  EXPECT_GT(enforced, 1200);
}

}  // namespace
}  // namespace aisp
