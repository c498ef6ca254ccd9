#include "router/prefix_directory.h"

#include <gtest/gtest.h>

#include <cstring>
#include <deque>
#include <map>

#include "common/random.h"
#include "router/prefix_view.h"

namespace aisp {
namespace {

Hash128 Unit(uint64_t chain, uint64_t n) { return {chain * 0x9e3779b97f4a7c15u + n, chain}; }

std::vector<Hash128> Chain(uint64_t chain, uint64_t n) {
  std::vector<Hash128> out;
  for (uint64_t i = 0; i < n; ++i) out.push_back(Unit(chain, i));
  return out;
}

v1::KvEventBatch Event(uint64_t number, v1::KvEvent::Kind kind, const std::vector<Hash128>& units) {
  v1::KvEventBatch batch;
  batch.set_incarnation(1);
  batch.set_first_sequence(number);
  v1::KvEvent& event = *batch.add_events();
  event.set_kind(kind);
  for (const Hash128& unit : units) {
    std::string bytes(16, '\0');
    std::memcpy(bytes.data(), &unit.lo, 8);
    std::memcpy(bytes.data() + 8, &unit.hi, 8);
    event.add_unit_hashes(bytes);
  }
  return batch;
}

TEST(PrefixDirectory, SaysForAllWorkersWhatEachOneSays) {
  // Workers that come, go, store and forget at random; with more than one word of slots.
  SplitMix64 random(11);
  PrefixDirectory directory;
  struct Known {
    std::unique_ptr<PrefixView> view;
    uint64_t events = 0;
    std::vector<uint64_t> length = std::vector<uint64_t>(4, 0);  // of each chain
  };
  std::vector<Known> workers(150);
  const auto start = [&](Known* worker) {
    *worker = {};
    worker->view = std::make_unique<PrefixView>(1, 1000, &directory);
  };
  for (Known& worker : workers) start(&worker);
  for (int round = 0; round < 3000; ++round) {
    Known& worker = workers[random.Below(workers.size())];
    const uint64_t dice = random.Below(40);
    const uint64_t chain = random.Below(4);
    uint64_t& length = worker.length[chain];
    if (dice == 0) {
      start(&worker);
    } else if (dice == 1) {
      worker.view->Apply(Event(worker.events++, v1::KvEvent::CLEARED, {}));
      worker.length.assign(4, 0);
    } else if (dice < 10 && length > 0) {
      const uint64_t gone = 1 + random.Below(length);
      const auto all = Chain(chain, length);
      worker.view->Apply(Event(worker.events++, v1::KvEvent::REMOVED,
                               {all.end() - static_cast<std::ptrdiff_t>(gone), all.end()}));
      length -= gone;
    } else {
      length = std::min<uint64_t>(100, length + random.Below(20));
      worker.view->Apply(Event(worker.events++, v1::KvEvent::STORED, Chain(chain, length)));
    }
    const auto prompt = Chain(chain, random.Below(110));
    std::vector<int32_t> held;
    directory.Match(prompt, &held);
    for (const Known& known : workers) {
      ASSERT_TRUE(known.view->slot());
      ASSERT_EQ(held[*known.view->slot()], known.view->MatchUnits(prompt)) << round;
    }
  }
  workers.clear();
  EXPECT_EQ(directory.units(), 0u);
}

TEST(PrefixTable, HoldsWhatAMapHolds) {
  struct Entry {
    Hash128 key;
    uint64_t value = 0;
  };
  SplitMix64 random(5);
  PrefixTable<Entry> table;
  std::map<Hash128, uint64_t> map;
  // Keys that differ in one half only, the all-zero key, and a growing number of keys: the table
  // grows and shrinks to empty several times while entries are still moving.
  for (int round = 0; round < 200'000; ++round) {
    const uint64_t range = 1 + static_cast<uint64_t>(round % 50'000);
    const Hash128 key = random.Below(2) == 0 ? Hash128{random.Below(range), 0}
                                             : Hash128{0, random.Below(range) << 32};
    if (random.Below(3) == 0) {
      ASSERT_EQ(table.Erase(key), map.erase(key) > 0);
    } else {
      const auto [entry, fresh] = table.Insert(key);
      ASSERT_EQ(fresh, map.count(key) == 0);
      if (fresh) {
        ASSERT_EQ(entry->value, 0u);
      }
      entry->value = map[key] = random.Next();
    }
    const Hash128 asked{random.Below(range), 0};
    const auto* const found = table.Find(asked);
    const auto expected = map.find(asked);
    ASSERT_EQ(found != nullptr, expected != map.end());
    if (found != nullptr) {
      ASSERT_EQ(found->value, expected->second);
    }
    ASSERT_EQ(table.size(), map.size());
    if (round % 20'000 == 19'999) {
      size_t seen = 0;
      table.ForEach([&](const Entry&) { ++seen; });
      ASSERT_EQ(seen, map.size());
    }
    if (round % 60'000 == 59'999) {
      for (const auto& [gone, value] : map) ASSERT_TRUE(table.Erase(gone));
      map.clear();
      ASSERT_TRUE(table.empty());
    }
  }
}

TEST(PrefixDirectory, WorkersBeyondItsSlotsAreLeftOut) {
  PrefixDirectory directory;
  std::deque<PrefixView> views;
  for (size_t i = 0; i < PrefixDirectory::kMaxSlots; ++i) views.emplace_back(1, 10, &directory);
  PrefixView extra(1, 10, &directory);
  EXPECT_FALSE(extra.slot());
  extra.Apply(Event(0, v1::KvEvent::STORED, Chain(1, 3)));
  EXPECT_EQ(extra.MatchUnits(Chain(1, 5)), 3);
  EXPECT_EQ(directory.units(), 0u);
  views.pop_back();
  EXPECT_TRUE(PrefixView(1, 10, &directory).slot());
}

}  // namespace
}  // namespace aisp
