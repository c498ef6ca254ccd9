// API keys: who is admitted, as which tenant, and what stays secret.
#include "frontend/tenants.h"
#include "tests/support/temp_files.h"

#include <gmock/gmock.h>

#include <set>

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

constexpr Instant kNow{1'000'000'000'000};

std::unique_ptr<Tenants> With(std::vector<std::string> keys, int64_t max_inflight = 0) {
  Config config;
  config.http.api_keys = std::move(keys);
  config.http.max_inflight_per_key = max_inflight;
  auto tenants = Tenants::Load(config);
  EXPECT_TRUE(tenants) << (tenants ? "" : tenants.error().message);
  return std::move(*tenants);
}

std::string LoadError(std::vector<std::string> keys) {
  Config config;
  config.http.api_keys = std::move(keys);
  const auto tenants = Tenants::Load(config);
  return tenants ? "" : tenants.error().message;
}

TEST(Tenants, WithoutKeysEverybodyIsTheSameTenant) {
  const auto tenants = With({});
  EXPECT_EQ(*tenants->Authenticate(""), "");
  EXPECT_EQ(*tenants->Authenticate("Bearer anything"), "");
}

TEST(Tenants, AKeyIsItsNameAndAnUnnamedOneADigest) {
  const auto tenants = With({"fox:sk-1", "fox:sk-2", "sk-3"});
  EXPECT_EQ(*tenants->Authenticate("Bearer sk-1"), "fox");
  EXPECT_EQ(*tenants->Authenticate("bearer  sk-2 "), "fox");
  const std::string unnamed = *tenants->Authenticate("Bearer sk-3");
  EXPECT_THAT(unnamed, ::testing::StartsWith("key-"));
  EXPECT_EQ(unnamed.size(), 20u);
  EXPECT_EQ(*With({"sk-3"})->Authenticate("Bearer sk-3"), unnamed) << "the same for every router";
}

TEST(Tenants, WhatIsNoKeyIsRefusedWithoutBeingRepeated) {
  const auto tenants = With({"fox:sk-1"});
  for (const char* header : {"", "Bearer", "Bearer ", "Bearer sk-", "Bearer sk-11", "Bearer fox",
                             "Bearer fox:sk-1", "Basic sk-1", "sk-1", "Bearer sk-1 sk-1"}) {
    const auto tenant = tenants->Authenticate(header);
    ASSERT_FALSE(tenant) << header;
    EXPECT_EQ(tenant.error().code, Code::kUnauthenticated);
    EXPECT_EQ(tenant.error().name, "invalid_api_key");
    EXPECT_THAT(tenant.error().message, Not(HasSubstr("sk-")));
  }
}

TEST(Tenants, ABadListIsRefusedByPlaceAndNotQuoted) {
  for (const char* bad : {"", ":sk-1", "fox:", "a b:sk-1", "key-x:sk-1", "sk 1", "fox:sk\x01"}) {
    const std::string error = LoadError({"sk-good", bad});
    EXPECT_THAT(error, HasSubstr("http.api_keys, entry 2")) << bad;
    EXPECT_THAT(error, Not(HasSubstr("sk-"))) << bad;
  }
  EXPECT_THAT(LoadError({"a:sk-1", "b:sk-1"}), HasSubstr("twice"));
}

TEST(Tenants, AFileHoldsOneKeyALineAndMustHoldOne) {
  const TempFile file("tenants", "# keys\n\n  fox:sk-1  \r\nsk-2\n");
  Config config;
  config.http.api_keys_file = file.path();
  auto tenants = Tenants::Load(config);
  ASSERT_TRUE(tenants) << tenants.error().message;
  EXPECT_EQ(*(*tenants)->Authenticate("Bearer sk-1"), "fox");
  EXPECT_TRUE((*tenants)->Authenticate("Bearer sk-2"));
  file.Write("# nothing\n");
  EXPECT_THAT(Tenants::Load(config).error().message, HasSubstr("holds no key"));
  file.Write("sk-1\nbad key\n");
  EXPECT_THAT(Tenants::Load(config).error().message, HasSubstr(file.path() + ":2"));
  config.http.api_keys_file = file.path() + "-not-there";
  EXPECT_THAT(Tenants::Load(config).error().message, HasSubstr("cannot read"));
}

TEST(Tenants, EachHasItsOwnBoundAndGetsItsPlacesBack) {
  const auto tenants = With({"a:1", "b:2"}, 2);
  auto first = tenants->Enter("a", kNow);
  {
    const auto second = tenants->Enter("a", kNow);
    ASSERT_TRUE(first && second);
    const auto third = tenants->Enter("a", kNow);
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().error.code, Code::kResourceExhausted);
    EXPECT_TRUE(tenants->Enter("b", kNow));
  }
  EXPECT_TRUE(tenants->Enter("a", kNow));
  Tenants::Slot moved = std::move(*first);
  const auto again = tenants->Enter("a", kNow);
  EXPECT_TRUE(again);
  EXPECT_FALSE(tenants->Enter("a", kNow));
}

TEST(Tenants, APlaceMayBeGivenBackWhenTheTenantsAreGone) {
  auto tenants = With({"fox:sk-1"}, 1);
  auto slot = tenants->Enter("fox", kNow);
  ASSERT_TRUE(slot);
  tenants.reset();
  Tenants::Slot last(std::move(*slot));  // gives it back when it is destroyed
}

TEST(Tenants, AKeyMayStandInTheFileAsItsDigestOnly) {
  std::string digest = "sha256:";
  for (const unsigned char byte : DigestOfKey("sk-1")) {
    constexpr const char* kDigits = "0123456789abcdef";
    digest += {kDigits[byte >> 4], kDigits[byte & 15]};
  }
  const auto tenants = With({"fox:" + digest});
  EXPECT_EQ(*tenants->Authenticate("Bearer sk-1"), "fox");
  EXPECT_FALSE(tenants->Authenticate("Bearer " + digest));
  EXPECT_EQ(With({digest})->Authenticate("Bearer sk-1")->size(), 20u);
  EXPECT_THAT(LoadError({"fox:sha256:12"}), HasSubstr("64 hexadecimal digits"));
}

TEST(Tenants, AnExpiredKeyIsRefusedWithItsDate) {
  const auto tenants =
      With({"fox:sk-1 expires=2027-01-31", "owl:sk-2 expires=2027-01-31T12:00:00Z"});
  constexpr int64_t kNoon = 1'801'396'800;  // 2027-01-31T12:00:00Z
  EXPECT_TRUE(tenants->Authenticate("Bearer sk-1", kNoon));
  EXPECT_TRUE(tenants->Authenticate("Bearer sk-2", kNoon - 1));
  const auto refused = tenants->Authenticate("Bearer sk-2", kNoon);
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().code, Code::kUnauthenticated);
  EXPECT_THAT(refused.error().message, HasSubstr("expired (2027-01-31T12:00:00Z)"));
  EXPECT_FALSE(tenants->Authenticate("Bearer sk-1", kNoon + 43'200));
  EXPECT_THAT(LoadError({"fox:sk-1 expires=tomorrow"}), HasSubstr("expires wants a date"));
}

TEST(Tenants, ARateIsRefilledAllTheTimeAndTheRefusalSaysWhenTheNextMayCome) {
  const auto tenants = With({"fox:sk-1 requests=2/m", "owl:sk-2"});
  EXPECT_TRUE(tenants->Enter("fox", kNow));
  EXPECT_TRUE(tenants->Enter("fox", kNow));
  const auto refused = tenants->Enter("fox", kNow + std::chrono::seconds(10));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().error.code, Code::kResourceExhausted);
  EXPECT_EQ(refused.error().retry_after, std::chrono::seconds(20));
  EXPECT_THAT(refused.error().error.message, HasSubstr("2 in a minute"));
  EXPECT_THAT(refused.error().error.message, HasSubstr("the next one at 2"));
  EXPECT_TRUE(tenants->Enter("fox", kNow + std::chrono::seconds(31)));
  for (int i = 0; i < 10; ++i) EXPECT_TRUE(tenants->Enter("owl", kNow));
}

TEST(Tenants, ASpentTokenQuotaIsRefusedUntilItsTimeIsOver) {
  const auto tenants = With({"fox:sk-1 tokens=100/h"});
  EXPECT_TRUE(tenants->Enter("fox", kNow));
  tenants->Charge("fox", 99, kNow);
  EXPECT_TRUE(tenants->Enter("fox", kNow));
  tenants->Charge("fox", 30, kNow + std::chrono::minutes(10));
  const auto refused = tenants->Enter("fox", kNow + std::chrono::minutes(20));
  ASSERT_FALSE(refused);
  EXPECT_EQ(refused.error().retry_after, std::chrono::minutes(40));
  EXPECT_THAT(refused.error().error.message,
              HasSubstr("used 129 tokens, it may have 100 in an hour"));
  EXPECT_TRUE(tenants->Enter("fox", kNow + std::chrono::minutes(60)));
}

TEST(Tenants, DefaultsHoldForEveryKeyThatSaysNothingElse) {
  Config config;
  config.http.api_keys = {"fox:sk-1", "owl:sk-2 requests=5/s"};
  config.http.requests_per_key = "1/h";
  const auto tenants = std::move(*Tenants::Load(config));
  EXPECT_TRUE(tenants->Enter("fox", kNow));
  EXPECT_FALSE(tenants->Enter("fox", kNow));
  for (int i = 0; i < 5; ++i) EXPECT_TRUE(tenants->Enter("owl", kNow));
  EXPECT_FALSE(tenants->Enter("owl", kNow));
  config.http.requests_per_key = "often";
  EXPECT_THAT(Tenants::Load(config).error().message,
              HasSubstr("http.requests_per_key (--requests-per-key) = 'often'"));
  EXPECT_THAT(LoadError({"fox:sk-1 requests=1/s", "fox:sk-2 requests=2/s"}),
              HasSubstr("other limits"));
}

TEST(CacheScope, DifferentPairsAreDifferentScopes) {
  const std::set<std::string> scopes = {
      CacheScope("", ""),      CacheScope("", "a"),      CacheScope("a", ""),
      CacheScope("a", "b"),    CacheScope("ab", ""),     CacheScope("", "ab"),
      CacheScope("", "1:a"),   CacheScope("1:a", ""),    CacheScope("a", "1:ab"),
      CacheScope("a1:a", "b"), CacheScope("1", ":1:aa"), CacheScope("1:", "1:aa")};
  EXPECT_EQ(scopes.size(), 12u);
  EXPECT_EQ(CacheScope("", ""), "");
}

TEST(Tenants, ASlotCountsTheChoicesOfItsRequest) {
  const auto tenants = With({"fox:sk-1 inflight=4"});
  {
    auto wide = tenants->Enter("fox", kNow);
    ASSERT_TRUE(wide);
    ASSERT_TRUE(tenants->Widen("fox", &*wide, 3));
    auto second = tenants->Enter("fox", kNow);
    ASSERT_TRUE(second) << "one place is left";
    const auto wider = tenants->Widen("fox", &*second, 2);
    ASSERT_FALSE(wider);
    EXPECT_EQ(wider.error().error.code, Code::kResourceExhausted);
    EXPECT_GT(wider.error().retry_after, Duration{});
    EXPECT_FALSE(tenants->Enter("fox", kNow));
  }
  auto again = tenants->Enter("fox", kNow);
  ASSERT_TRUE(again) << "all places came back";
  EXPECT_TRUE(tenants->Widen("fox", &*again, 4));
}

TEST(Tenants, MoreChoicesThanATenantMayEverHaveAreNoMatterOfTime) {
  const auto tenants = With({"fox:sk-1 inflight=4"});
  auto slot = tenants->Enter("fox", kNow);
  const auto wide = tenants->Widen("fox", &*slot, 5);
  ASSERT_FALSE(wide);
  EXPECT_EQ(wide.error().error.code, Code::kInvalidArgument);
  EXPECT_THAT(wide.error().error.message, HasSubstr("5 choices"));
  EXPECT_TRUE(With({})->Widen("", &*slot, 1000)) << "everybody without a key has no such bound";
}

TEST(Tenants, AKeysClassIsThatOfRequestsThatNameNone) {
  const auto tenants = With({"fox:sk-1 class=batch", "owl:sk-2"});
  EXPECT_EQ(tenants->ShareOf("fox", 0).service_class, ServiceClass::kBatch);
  EXPECT_EQ(tenants->ShareOf("fox", 0, ServiceClass::kInteractive).service_class,
            ServiceClass::kInteractive);
  EXPECT_EQ(tenants->ShareOf("owl", 0).service_class, ServiceClass::kInteractive);
  EXPECT_EQ(tenants->ShareOf("", 0, ServiceClass::kBestEffort).service_class,
            ServiceClass::kBestEffort);
  EXPECT_THAT(LoadError({"fox:sk-1 class=fast"}), HasSubstr("class wants"));
}

TEST(Tenants, AKeysSloIsThatOfRequestsThatNameNone) {
  const auto tenants = With({"fox:sk-1 slo-ttft-ms=300 slo-tpot-ms=12.5", "owl:sk-2"});
  const Objective usual = tenants->ObjectiveOf("fox", {});
  EXPECT_EQ(usual.ttft_ms, 300);
  EXPECT_EQ(usual.tpot_ms, 12.5);
  const Objective named = tenants->ObjectiveOf("fox", {1000, 0});
  EXPECT_EQ(named.ttft_ms, 1000);
  EXPECT_EQ(named.tpot_ms, 12.5);
  EXPECT_FALSE(tenants->ObjectiveOf("owl", {}).any());
  EXPECT_FALSE(tenants->ObjectiveOf("", {}).any());
  for (const char* bad : {"0", "-1", "soon", "", "86400001", "nan"})
    EXPECT_THAT(LoadError({std::string("fox:sk-1 slo-tpot-ms=") + bad}),
                HasSubstr("slo-tpot-ms wants"));
}

TEST(Tenants, PriorityIsATenantsOwnUnlessItsKeySaysOtherwise) {
  const auto tenants =
      With({"fox:sk-1 weight=3", "owl:sk-2 priority=all", "hen:sk-3 priority=own"});
  EXPECT_EQ(tenants->ShareOf("fox", 7).weight, 3u);
  EXPECT_EQ(tenants->ShareOf("fox", 7).rank, 0);
  EXPECT_EQ(tenants->ShareOf("owl", 7).rank, 7);
  EXPECT_EQ(tenants->ShareOf("owl", -7).rank, -7);
  EXPECT_EQ(tenants->ShareOf("hen", 7).rank, 0);
  EXPECT_EQ(tenants->ShareOf("", 7).rank, 0);
  EXPECT_THAT(LoadError({"fox:sk-1 weight=0"}), HasSubstr("weight wants"));
  EXPECT_THAT(LoadError({"fox:sk-1 priority=mine"}), HasSubstr("priority wants"));
}

}  // namespace
}  // namespace aisp
