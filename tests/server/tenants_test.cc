// API keys: who is let in, as whom, and what nobody gets to read.
#include "server/tenants.h"
#include "tests/support/temp_files.h"

#include <gmock/gmock.h>

#include <set>

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

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
  auto first = tenants->Enter("a");
  {
    const auto second = tenants->Enter("a");
    ASSERT_TRUE(first && second);
    const auto third = tenants->Enter("a");
    ASSERT_FALSE(third);
    EXPECT_EQ(third.error().code, Code::kResourceExhausted);
    EXPECT_TRUE(tenants->Enter("b"));
  }
  EXPECT_TRUE(tenants->Enter("a"));
  Tenants::Slot moved = std::move(*first);
  const auto again = tenants->Enter("a");
  EXPECT_TRUE(again);
  EXPECT_FALSE(tenants->Enter("a"));
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

}  // namespace
}  // namespace aisp
