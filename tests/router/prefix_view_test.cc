#include "router/prefix_view.h"

#include <cstring>

#include <gtest/gtest.h>

namespace aisp {
namespace {

Hash128 Unit(uint64_t n) { return {n * 0x9e3779b97f4a7c15u, n}; }

std::string Bytes(const Hash128& h) {
  std::string out(16, '\0');
  std::memcpy(out.data(), &h.lo, 8);
  std::memcpy(out.data() + 8, &h.hi, 8);
  return out;
}

v1::KvEventBatch Batch(
    uint64_t first, const std::vector<std::pair<v1::KvEvent::Kind, std::vector<uint64_t>>>& events,
    bool snapshot = false) {
  v1::KvEventBatch batch;
  batch.set_incarnation(5);
  batch.set_first_sequence(first);
  batch.set_snapshot(snapshot);
  for (const auto& [kind, units] : events) {
    v1::KvEvent& e = *batch.add_events();
    e.set_kind(kind);
    for (uint64_t u : units) e.add_unit_hashes(Bytes(Unit(u)));
  }
  return batch;
}

std::vector<Hash128> Chain(uint64_t n) {
  std::vector<Hash128> out;
  for (uint64_t i = 1; i <= n; ++i) out.push_back(Unit(i));
  return out;
}

constexpr auto kStored = v1::KvEvent::STORED;
constexpr auto kRemoved = v1::KvEvent::REMOVED;
using Applied = PrefixView::Applied;

TEST(PrefixView, FollowsStoreAndRemoveFromTheFirstEvent) {
  PrefixView view(5, 1000, nullptr);
  EXPECT_TRUE(view.blind());
  EXPECT_EQ(view.Apply(Batch(0, {{kStored, {1, 2, 3}}, {kRemoved, {3}}})), Applied::kOk);
  EXPECT_FALSE(view.blind());
  EXPECT_EQ(view.MatchUnits(Chain(5)), 2);
  EXPECT_EQ(view.Apply(Batch(2, {{v1::KvEvent::CLEARED, {}}})), Applied::kOk);
  EXPECT_EQ(view.MatchUnits(Chain(5)), 0);
}

TEST(PrefixView, AGapMakesItBlindUntilASnapshot) {
  PrefixView view(5, 1000, nullptr);
  view.Apply(Batch(0, {{kStored, {1}}}));
  EXPECT_EQ(view.Apply(Batch(3, {{kStored, {2}}})), Applied::kNeedsSnapshot);
  EXPECT_TRUE(view.blind());
  EXPECT_EQ(view.gaps(), 1u);
  EXPECT_EQ(view.MatchUnits(Chain(4)), 1) << "what was known stays as a guess";
  EXPECT_EQ(view.Apply(Batch(4, {{kStored, {1, 2, 3, 4}}}, /*snapshot=*/true)), Applied::kOk);
  EXPECT_FALSE(view.blind());
  EXPECT_EQ(view.MatchUnits(Chain(4)), 4);
  EXPECT_EQ(view.Apply(Batch(4, {{kRemoved, {4}}})), Applied::kOk);
  EXPECT_EQ(view.MatchUnits(Chain(4)), 3);
}

TEST(PrefixView, RepeatedEventsAreAppliedOnce) {
  PrefixView view(5, 1000, nullptr);
  view.Apply(Batch(0, {{kStored, {1}}, {kRemoved, {1}}}));
  EXPECT_EQ(view.Apply(Batch(0, {{kStored, {1}}})), Applied::kIgnored);
  EXPECT_EQ(view.MatchUnits(Chain(1)), 0);
  EXPECT_EQ(view.Apply(Batch(1, {{kRemoved, {1}}, {kStored, {1}}})), Applied::kOk);
  EXPECT_EQ(view.MatchUnits(Chain(1)), 1);
}

TEST(PrefixView, AnotherIncarnationsEventsAreIgnored) {
  PrefixView view(6, 1000, nullptr);
  EXPECT_EQ(view.Apply(Batch(0, {{kStored, {1}}})), Applied::kIgnored);
  EXPECT_EQ(view.units(), 0u);
}

TEST(PrefixView, AMalformedHashAsksForASnapshot) {
  PrefixView view(5, 1000, nullptr);
  v1::KvEventBatch batch = Batch(0, {{kStored, {1}}});
  batch.mutable_events(0)->add_unit_hashes("short");
  EXPECT_EQ(view.Apply(batch), Applied::kNeedsSnapshot);
  EXPECT_TRUE(view.blind());
}

TEST(PrefixView, MemoryIsBoundedAndDropsAreCounted) {
  PrefixView view(5, 2, nullptr);
  view.Apply(Batch(0, {{kStored, {1, 2, 3, 4}}}));
  EXPECT_EQ(view.units(), 2u);
  EXPECT_EQ(view.dropped_units(), 2u);
  EXPECT_EQ(view.MatchUnits(Chain(4)), 2);
}

}  // namespace
}  // namespace aisp
