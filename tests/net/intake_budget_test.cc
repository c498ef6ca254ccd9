#include "net/intake_budget.h"

#include <gtest/gtest.h>

#include <array>

namespace aisp {
namespace {

using Share = IntakeBudget::Share;

TEST(IntakeBudget, CountsWhatArrivedAndGivesItBack) {
  IntakeBudget budget({.total_bytes = 100, .bytes_per_party = 60});
  {
    Share a(&budget, "a");
    EXPECT_EQ(a.GrowTo(40), Share::Grown::kYes);
    EXPECT_EQ(a.GrowTo(60), Share::Grown::kYes);
    EXPECT_EQ(budget.total(), 60u);
    Share more(&budget, "a");
    EXPECT_EQ(more.GrowTo(1), Share::Grown::kPartyFull) << "a has its own bound";
    Share b(&budget, "b");
    EXPECT_EQ(b.GrowTo(41), Share::Grown::kTotalFull);
    EXPECT_EQ(b.GrowTo(40), Share::Grown::kYes) << "what was refused was not counted";
    a.Whole();
    EXPECT_EQ(budget.of("a"), 0u) << "a whole body is no longer the party's";
    EXPECT_EQ(budget.total(), 100u) << "but is still held";
    Share moved = std::move(b);
    EXPECT_EQ(budget.of("b"), 40u);
  }
  EXPECT_EQ(budget.total(), 0u);
  EXPECT_EQ(budget.of("b"), 0u);
}

TEST(IntakeBudget, AnIpv6NetworkIsOneParty) {
  std::array<unsigned char, 16> mapped = {0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xFF, 0xFF, 192, 0, 2, 7};
  EXPECT_EQ(AddressParty(mapped.data()), "192.0.2.7");
  std::array<unsigned char, 16> v6 = {0x20, 0x01, 0x0d, 0xb8, 0, 0, 0, 1, 9, 9, 9, 9, 9, 9, 9, 9};
  EXPECT_EQ(AddressParty(v6.data()), "2001:db8:0:1::/64");
  v6[15] = 1;
  EXPECT_EQ(AddressParty(v6.data()), "2001:db8:0:1::/64");
}

}  // namespace
}  // namespace aisp
