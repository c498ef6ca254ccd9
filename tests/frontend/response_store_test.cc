#include "frontend/response_store.h"

#include <gtest/gtest.h>
#include <malloc.h>

#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace aisp {
namespace {

StoredResponse Of(size_t bytes) { return {std::string(bytes, 'x'), {}}; }

TEST(ResponseStore, TenantsDoNotSeeEachOthers) {
  ResponseStore store({});
  EXPECT_TRUE(store.Put("a", "resp_1", {"{}", {Value("hello")}}));
  ASSERT_NE(store.Find("a", "resp_1"), nullptr);
  EXPECT_EQ(store.Find("a", "resp_1")->conversation.size(), 1u);
  EXPECT_EQ(store.Find("b", "resp_1"), nullptr);
  EXPECT_FALSE(store.Erase("b", "resp_1"));
  EXPECT_TRUE(store.Erase("a", "resp_1"));
  EXPECT_FALSE(store.Erase("a", "resp_1"));
  EXPECT_EQ(store.bytes(), 0u);
}

TEST(ResponseStore, TheOneUsedLeastLatelyGoesWhenATenantHasTooMany) {
  ResponseStore store({.count = 2});
  store.Put("a", "1", Of(1));
  store.Put("a", "2", Of(1));
  store.Find("a", "1");
  store.Put("a", "3", Of(1));
  EXPECT_NE(store.Find("a", "1"), nullptr);
  EXPECT_EQ(store.Find("a", "2"), nullptr);
  EXPECT_NE(store.Find("a", "3"), nullptr);
}

TEST(ResponseStore, BytesOfATenantAndOfAllAreBounded) {
  ResponseStore store({.count = 100, .bytes = 300, .total_bytes = 500});
  EXPECT_FALSE(store.Put("a", "huge", Of(301)));
  for (int i = 0; i < 10; ++i) store.Put("a", std::to_string(i), Of(100));
  EXPECT_EQ(store.bytes(), 300u);
  EXPECT_EQ(store.Find("a", "6"), nullptr);
  EXPECT_NE(store.Find("a", "7"), nullptr);
  // Another tenant's answers evict the least recently used answer of the tenant that has most.
  store.Put("b", "x", Of(290));
  EXPECT_EQ(store.bytes(), 490u);
  EXPECT_EQ(store.Find("a", "8"), nullptr);
  EXPECT_NE(store.Find("a", "7"), nullptr);
}

TEST(ResponseStore, WhoHasMostMakesRoom) {
  ResponseStore store({.count = 100, .bytes = 300, .total_bytes = 500});
  store.Put("victim", "v", Of(50));
  for (int i = 0; i < 20; ++i) {
    for (const char* const tenant : {"a", "b", "c"}) store.Put(tenant, std::to_string(i), Of(100));
  }
  EXPECT_NE(store.Find("victim", "v"), nullptr);
  EXPECT_NE(store.Find("c", "19"), nullptr) << "what is new is kept";
  // Only large answers: the new one stays, whichever tenant has most.
  for (const char* const tenant : {"a", "b", "c"}) store.Put(tenant, "large", Of(300));
  EXPECT_NE(store.Find("c", "large"), nullptr);
  EXPECT_LE(store.bytes(), 500u);
}

TEST(ResponseStore, TheSameIdReplacesAndNothingIsKeptWhereNothingMayBe) {
  ResponseStore store({.count = 2});
  store.Put("a", "1", Of(100));
  store.Put("a", "1", Of(10));
  EXPECT_EQ(store.bytes(), 10u);
  ResponseStore none({.count = 0});
  EXPECT_FALSE(none.Put("a", "1", Of(1)));
}

#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// The memory of tiny parts is mostly overhead, and clients choose how many there are.
TEST(ResponseStore, CountsNoLessThanTheAllocatorGives) {
  constexpr size_t kParts = 20'000;
  const auto numbered = [](size_t i) { return std::to_string(i); };
  const std::vector<std::pair<const char*, std::function<Value(size_t)>>> shapes = {
      {"empty objects", [](size_t) { return Value(Value::Map()); }},
      {"empty lists", [](size_t) { return Value(Value::List()); }},
      {"short strings", [&](size_t i) { return Value(numbered(i)); }},
      {"objects of one",
       [](size_t) {
         return Value(Value::Map{{"a", 1}});
       }},
      {"numbers", [](size_t i) { return Value(static_cast<int64_t>(i)); }},
      {"long strings", [](size_t) { return Value(std::string(1000, 'x')); }},
  };
  for (const auto& [name, make] : shapes) {
    for (const bool named : {false, true}) {
      ResponseStore store({});
      const size_t before = mallinfo2().uordblks + mallinfo2().hblkhd;
      Value::List parts;
      Value::Map by_name;
      for (size_t i = 0; i < kParts; ++i)
        named ? by_name.Set(numbered(i), make(i)) : parts.push_back(make(i));
      Value item = named ? Value(std::move(by_name)) : Value(std::move(parts));
      ASSERT_TRUE(store.Put("a", "1", {"", {std::move(item)}}));
      const size_t taken = mallinfo2().uordblks + mallinfo2().hblkhd - before;
      EXPECT_GE(store.bytes(), taken) << name << (named ? " by name" : "");
      EXPECT_LE(store.bytes(), 4 * taken) << name << (named ? " by name" : "");
    }
  }
}
#endif

}  // namespace
}  // namespace aisp
