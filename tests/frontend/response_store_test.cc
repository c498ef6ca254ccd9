#include "frontend/response_store.h"

#include <gtest/gtest.h>

#include <string>

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
  // Another tenant's answers push out what was used least lately of all.
  store.Put("b", "x", Of(290));
  EXPECT_EQ(store.bytes(), 490u);
  EXPECT_EQ(store.Find("a", "8"), nullptr);
  EXPECT_NE(store.Find("a", "7"), nullptr);
}

TEST(ResponseStore, TheSameIdReplacesAndNothingIsKeptWhereNothingMayBe) {
  ResponseStore store({.count = 2});
  store.Put("a", "1", Of(100));
  store.Put("a", "1", Of(10));
  EXPECT_EQ(store.bytes(), 10u);
  ResponseStore none({.count = 0});
  EXPECT_FALSE(none.Put("a", "1", Of(1)));
}

}  // namespace
}  // namespace aisp
