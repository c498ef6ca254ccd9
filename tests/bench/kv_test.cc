// The table of `aisp bench kv`, and lanes that do not exist.
#include "bench/kv.h"

#include <gmock/gmock.h>

#include <nlohmann/json.hpp>

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

KvBench Example() {
  KvBench bench;
  bench.rows.push_back({.lane = "peer copy", .block_kib = 256, .blocks = 16, .gb_per_s = 300});
  bench.rows.push_back({.lane = "cuda_ipc",
                        .block_kib = 256,
                        .blocks = 16,
                        .write_us = 42.5,
                        .gb_per_s = 225,
                        .of_peer = 0.75});
  bench.left_out.push_back("ucx: \"not\" there");
  return bench;
}

TEST(BenchKv, TheTableHasEachLaneBesideItsReference) {
  const std::string table = ToTable(Example());
  EXPECT_THAT(table, HasSubstr("of peer"));
  EXPECT_THAT(table, HasSubstr("75%"));
  EXPECT_THAT(table, HasSubstr("left out: ucx: \"not\" there"));
}

TEST(BenchKv, JsonHasTheSameAndWhatWasLeftOut) {
  const auto json = nlohmann::json::parse("{" + ToJson(Example()) + "}");
  ASSERT_EQ(json["rows"].size(), 2u);
  EXPECT_EQ(json["rows"][0]["lane"], "peer copy");
  EXPECT_EQ(json["rows"][1]["write_us"], 42.5);
  EXPECT_EQ(json["rows"][1]["of_peer"], 0.75);
  EXPECT_THAT(json["left_out"], ElementsAre("ucx: \"not\" there"));
}

TEST(BenchKv, ShapesAreKibOfABlockAndBlocks) {
  const auto shapes = ParseKvShapes("64x16,1024x1");
  ASSERT_TRUE(shapes.has_value());
  ASSERT_EQ(shapes->size(), 2u);
  EXPECT_EQ((*shapes)[0].block_bytes, 64u << 10);
  EXPECT_EQ((*shapes)[0].blocks, 16u);
  EXPECT_EQ((*shapes)[1].block_bytes, 1u << 20);
  for (const char* wrong : {"", "64", "64x", "x16", "0x1", "64x0", "64x16x32", "64x16,", "-4x1",
                            "131073x1", "64x2049"}) {
    const auto refused = ParseKvShapes(wrong);
    ASSERT_FALSE(refused.has_value()) << wrong;
    EXPECT_EQ(refused.error().code, Code::kInvalidArgument);
  }
}

TEST(BenchKv, ALaneThatIsNoneIsRefusedBeforeTheOthersAreMeasured) {
  KvBenchOptions options;
  options.lanes = {"shm", "smh"};
  options.owner = {"/nowhere"};
  const Result<KvBench> bench = BenchKv(options);
  ASSERT_FALSE(bench.has_value());
  EXPECT_EQ(bench.error().code, Code::kInvalidArgument);
  EXPECT_THAT(bench.error().message, HasSubstr("'smh'"));
}

}  // namespace
}  // namespace aisp
