// Files with wrong headers.
#include "model/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <filesystem>
#include <fstream>

namespace aisp {
namespace {

std::string File(const std::string& header, size_t data_bytes) {
  const uint64_t n = header.size();
  std::string out(reinterpret_cast<const char*>(&n), 8);
  return out + header + std::string(data_bytes, '\x01');
}

Result<std::map<std::string, StoredTensor>> Parse(const std::string& file) {
  return ParseSafetensors({reinterpret_cast<const std::byte*>(file.data()), file.size()},
                          "f.safetensors");
}

void ExpectRefused(const std::string& file, const std::string& reason) {
  const auto parsed = Parse(file);
  ASSERT_FALSE(parsed.has_value()) << reason;
  EXPECT_EQ(parsed.error().code, Code::kInvalidArgument);
  EXPECT_NE(parsed.error().message.find(reason), std::string::npos) << parsed.error().message;
  EXPECT_NE(parsed.error().message.find("f.safetensors"), std::string::npos);
}

TEST(Safetensors, AGoodFileIsRead) {
  const auto parsed = Parse(File(
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"BF16","shape":[3],"data_offsets":[8,14]},)"
      R"("a":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]},"s":{"dtype":"F32","shape":[],"data_offsets":[14,18]}})",
      18));
  ASSERT_TRUE(parsed.has_value()) << parsed.error().message;
  EXPECT_EQ(parsed->size(), 3u);
  EXPECT_EQ(parsed->at("b").data.size(), 6u);
  EXPECT_EQ(parsed->at("a").shape, (std::vector<int64_t>{1, 2}));
  EXPECT_TRUE(parsed->at("s").shape.empty());
}

TEST(Safetensors, EveryLieOfAHeaderIsNamed) {
  const std::string one = R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]}})";
  ExpectRefused("", "0 bytes");
  ExpectRefused("1234567", "7 bytes");
  ExpectRefused(File(one, 8).substr(0, 30), "truncated");
  ExpectRefused(std::string(8, '\xff') + one, "announced");
  ExpectRefused(File("{not json", 0), "JSON");
  ExpectRefused(File("[]", 0), "JSON");
  ExpectRefused(File(one, 4), "truncated");
  ExpectRefused(File(one, 12), "4 bytes of data belong to no tensor");
  ExpectRefused(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[8,0]}})", 8),
                "data_offsets");
  ExpectRefused(File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[-8,0]}})", 8),
                "data_offsets");
  ExpectRefused(
      File(R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,18446744073709551615]}})", 8),
      "data_offsets");
  ExpectRefused(File(R"({"a":{"dtype":"F32","shape":[3],"data_offsets":[0,8]}})", 8), "take 12");
  ExpectRefused(File(R"({"a":{"dtype":"F31","shape":[2],"data_offsets":[0,8]}})", 8), "F31");
  ExpectRefused(File(R"({"a":{"dtype":"F32","shape":[-2],"data_offsets":[0,8]}})", 8), "shape");
  ExpectRefused(
      File(R"({"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      "shape");
  ExpectRefused(
      File(R"({"a":{"dtype":"F32","shape":[0,4294967296,4294967296],"data_offsets":[0,0]}})", 0),
      "shape");
  ExpectRefused(File(R"({"a":{"dtype":"F32","shape":[2.5],"data_offsets":[0,8]}})", 8), "shape");
  ExpectRefused(File(R"({"a":{"dtype":"F32","data_offsets":[0,8]}})", 8), "needs dtype");
  ExpectRefused(File(R"({"a":7})", 0), "needs dtype");
  ExpectRefused(
      File(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[2],"data_offsets":[4,12]}})",
          12),
      "overlaps");
  ExpectRefused(
      File(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"F32","shape":[1],"data_offsets":[12,16]}})",
          16),
      "a hole of 4 bytes");
  ExpectRefused(
      File(
          R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"a":{"dtype":"F32","shape":[2],"data_offsets":[8,16]}})",
          16),
      "named twice");
}

TEST(Safetensors, NoCutOfAGoodFileIsAccepted) {
  const std::string good = File(
      R"({"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"b":{"dtype":"I8","shape":[5],"data_offsets":[8,13]}})",
      13);
  ASSERT_TRUE(Parse(good).has_value());
  for (size_t n = 0; n < good.size(); ++n) EXPECT_FALSE(Parse(good.substr(0, n)).has_value()) << n;
}

class CheckpointTest : public testing::Test {
 protected:
  void SetUp() override {
    directory_ = testing::TempDir() + "checkpoint_" +
                 testing::UnitTest::GetInstance()->current_test_info()->name();
    std::filesystem::remove_all(directory_);
    std::filesystem::create_directories(directory_);
  }
  void TearDown() override { std::filesystem::remove_all(directory_); }
  void Write(const std::string& name, const std::string& content) {
    std::ofstream(directory_ + "/" + name, std::ios::binary) << content;
  }
  std::string directory_;
};

const char* const kPartOne = R"({"a":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})";
const char* const kPartTwo = R"({"b":{"dtype":"F32","shape":[1],"data_offsets":[0,4]}})";

TEST_F(CheckpointTest, ShardsAreFoundThroughTheIndex) {
  Write("one.safetensors", File(kPartOne, 8));
  Write("two.safetensors", File(kPartTwo, 4));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  const auto checkpoint = Checkpoint::Open(directory_);
  ASSERT_TRUE(checkpoint.has_value()) << checkpoint.error().message;
  const int64_t shape[] = {2, 1};
  EXPECT_TRUE((*checkpoint)->Get("a", shape).has_value());
  const auto missing = (*checkpoint)->Get("c", shape);
  EXPECT_EQ(missing.error().code, Code::kNotFound);
  EXPECT_NE(missing.error().message.find("\"c\""), std::string::npos);
  const int64_t other[] = {1, 2};
  const auto mismatch = (*checkpoint)->Get("a", other);
  EXPECT_NE(mismatch.error().message.find("[2, 1]"), std::string::npos) << mismatch.error().message;
  EXPECT_NE(mismatch.error().message.find("[1, 2]"), std::string::npos) << mismatch.error().message;
}

TEST_F(CheckpointTest, AnIndexThatLiesIsRefused) {
  Write("one.safetensors", File(kPartOne, 8));
  for (const char* index :
       {R"({"weight_map":{"a":"../one.safetensors"}})", R"({"weight_map":{"b":"one.safetensors"}})",
        R"({"weight_map":{"a":"gone.safetensors"}})", R"({"weight_map":[]})", R"({})", R"(no)"}) {
    Write("model.safetensors.index.json", index);
    EXPECT_FALSE(Checkpoint::Open(directory_).has_value()) << index;
  }
}

TEST_F(CheckpointTest, ATensorInTwoFilesIsRefused) {
  Write("one.safetensors", File(kPartOne, 8));
  Write("two.safetensors", File(kPartOne, 8));
  Write("model.safetensors.index.json",
        R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})");
  EXPECT_NE(Checkpoint::Open(directory_).error().message.find("two.safetensors"),
            std::string::npos);
}

TEST_F(CheckpointTest, AnEmptyDirectorySaysWhatItLacks) {
  const auto checkpoint = Checkpoint::Open(directory_);
  EXPECT_EQ(checkpoint.error().code, Code::kNotFound);
  EXPECT_NE(checkpoint.error().message.find("model.safetensors.index.json"), std::string::npos);
}

TEST_F(CheckpointTest, TheDigestChangesWithContentAndConfigButNotWithThePlace) {
  Write("model.safetensors", File(kPartOne, 8));
  Write("config.json", "{}");
  const auto first = DigestCheckpoint(directory_);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->size(), 32u);
  EXPECT_EQ(*DigestCheckpoint(directory_ + "/."), *first);
  Write("config.json", "{ }");
  EXPECT_NE(*DigestCheckpoint(directory_), *first);
  Write("config.json", "{}");
  std::string other = File(kPartOne, 8);
  other.back() = '\x02';
  Write("model.safetensors", other);
  EXPECT_NE(*DigestCheckpoint(directory_), *first);
}

}  // namespace
}  // namespace aisp
