#include "common/fair_share.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace aisp
