#include "common/fair_share.h"

#include <gtest/gtest.h>

#include <vector>

#include "common/random.h"

namespace aisp {
namespace {

TEST(FairShare, ServiceIsTokensOverWeight) {
  FairShare shares;
  FairShare::Account* a = shares.Enter({"a", 1, 0});
  FairShare::Account* b = shares.Enter({"b", 4, 0});
  FairShare::Charge(a, 100);
  FairShare::Charge(b, 200);
  EXPECT_TRUE(Precedes(*b, *a));
  FairShare::Charge(b, 300);
  EXPECT_TRUE(Precedes(*a, *b));
}

TEST(FairShare, WhoComesStartsWhereTheLeastServedStands) {
  FairShare shares;
  FairShare::Account* a = shares.Enter({"a", 1, 0});
  FairShare::Account* b = shares.Enter({"b", 1, 0});
  FairShare::Charge(a, 1000);
  FairShare::Charge(b, 700);
  EXPECT_EQ(shares.Enter({"new", 1, 0})->service, 700) << "nobody saves up a claim while idle";
}

TEST(FairShare, LeavingAndComingBackIsNoWayToStartAnew) {
  FairShare shares;
  FairShare::Account* a = shares.Enter({"a", 1, 0});
  FairShare::Account* b = shares.Enter({"b", 1, 0});
  FairShare::Charge(a, 1000);
  shares.Leave(a);
  EXPECT_EQ(shares.active(), 1u);
  EXPECT_EQ(shares.Enter({"a", 1, 0})->service, 1000);
  FairShare::Charge(b, 5000);
  shares.Leave(b);
  EXPECT_EQ(shares.known(), 2u) << "it is ahead of a";
}

TEST(FairShare, NothingIsRememberedOfIdleTenantsThatAreBehindOrOfAnIdleEngine) {
  FairShare shares;
  for (int i = 0; i < 1000; ++i) {
    FairShare::Account* busy = shares.Enter({"busy", 1, 0});
    FairShare::Charge(busy, 10);
    shares.Leave(shares.Enter({"tenant" + std::to_string(i), 1, 0}));
    EXPECT_LE(shares.known(), 2u);
  }
  EXPECT_EQ(shares.active(), 1u);
  FairShare::Account* busy = shares.Enter({"busy", 1, 0});
  while (busy->work > 1) shares.Leave(busy);
  shares.Leave(busy);
  EXPECT_EQ(shares.known(), 0u);
}

TEST(FairShare, WhoComesNewFindsAPlaceHoweverManyTenantsTakeAllThatTheyMay) {
  constexpr size_t kPlaces = 1024;
  for (const size_t tenants : {1, 2, 50, 200}) {
    FairShare shares;
    SplitMix64 random(tenants);
    std::vector<FairShare::Account*> taken;
    const auto take = [&](size_t tenant) {
      FairShare::Account* account = shares.Enter({"t" + std::to_string(tenant), 1, 0});
      const bool may = FairShare::MayTake(*account, taken.size(), kPlaces);
      may ? taken.push_back(account) : shares.Leave(account);
      return may;
    };
    for (int round = 0; round < 50'000; ++round) {
      for (int i = 0; i < 4; ++i) take(random.Below(tenants));
      FairShare::Account* newcomer = shares.Enter({"new", 1, 0});
      ASSERT_TRUE(FairShare::MayTake(*newcomer, taken.size(), kPlaces)) << tenants << " " << round;
      shares.Leave(newcomer);
      // One of them ends, no matter which.
      const size_t ends = random.Below(taken.size());
      shares.Leave(taken[ends]);
      taken[ends] = taken.back();
      taken.pop_back();
    }
    EXPECT_GT(taken.size(), kPlaces * 3 / 4);
  }
}

TEST(FairShare, WhoComesNewFindsAPlaceWhereManyCameBeforeWithOneEach) {
  constexpr size_t kPlaces = 1024;
  FairShare shares;
  size_t taken = 0;
  const auto take = [&](const std::string& tenant) {
    FairShare::Account* account = shares.Enter({.name = tenant, .tenants = 71});
    const bool may = FairShare::MayTake(*account, taken, kPlaces);
    may ? void(++taken) : shares.Leave(account);
    return may;
  };
  for (int i = 0; i < 2000; ++i) take("early" + std::to_string(i % 10));
  for (int i = 0; i < 60; ++i) EXPECT_TRUE(take("late" + std::to_string(i))) << i;
  EXPECT_TRUE(take("new"));
  EXPECT_GT(taken, kPlaces * 3 / 4);
}

}  // namespace
}  // namespace aisp
