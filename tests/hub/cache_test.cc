// Names of models, and what is found in a cache of Hugging Face's layout.
#include "hub/cache.h"

#include <gmock/gmock.h>

#include <filesystem>

#include "hub/content_hash.h"
#include "hub/file_lock.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const std::string kCommit(40, 'a');

TEST(HubRepo, NameAndRevisionAreTakenApart) {
  const auto plain = ParseHubRepo("meta-llama/Llama-3.1-8B");
  ASSERT_TRUE(plain);
  EXPECT_EQ(plain->Folder(), "models--meta-llama--Llama-3.1-8B");
  EXPECT_EQ(plain->revision, "main");
  const auto branch = ParseHubRepo("org/name@refs/pr/3");
  ASSERT_TRUE(branch);
  EXPECT_EQ(branch->revision, "refs/pr/3");
  EXPECT_EQ(branch->Shown(), "org/name@refs/pr/3");
}

TEST(HubRepo, WhatCouldLeaveTheCacheIsNoName) {
  for (const char* name : {"org", "/name", "org/", "a/b/c", "../x", "org/..", "org/a--b", "org/.x",
                           "org/x@", "org/x@/main", "org/x@a/../b", "org/x@a b", "org/x\n"})
    EXPECT_FALSE(ParseHubRepo(name)) << name;
}

TEST(HubRepo, PathsDoNotLookLikeNames) {
  EXPECT_TRUE(LooksLikeHubRepo("org/name"));
  EXPECT_TRUE(LooksLikeHubRepo("org/name@refs/pr/3"));
  for (const char* path :
       {"", "name", "/org/name", "./org", "../org", "~/org", "a/b/c", "org/", "models/shape.json"})
    EXPECT_FALSE(LooksLikeHubRepo(path)) << path;
}

TEST(ContentHash, IsGitsForSmallFilesAndSha256ForLargeOnes) {
  // `printf hello | git hash-object --stdin`, `printf hello | sha256sum`
  const std::string git = "b6fc4c620b67d95f953a5c1c1230aaab5db5a1b0";
  const std::string sha = "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824";
  for (const std::string& name : {git, sha}) {
    auto hash = ContentHash::For(name, 5);
    ASSERT_TRUE(hash);
    hash->Update("hel");
    hash->Update("lo");
    EXPECT_EQ(hash->Hex(), name);
  }
  EXPECT_FALSE(ContentHash::For("abc", 5));
  EXPECT_FALSE(ContentHash::For(std::string(40, 'G'), 5));
}

TEST(FileLock, IsHeldByOneAtATime) {
  const TempFolder folder;
  const std::string path = folder.path() + "/deep/x.lock";
  {
    const auto first = FileLock::Try(path);
    ASSERT_TRUE(first && *first);
    const auto second = FileLock::Try(path);
    ASSERT_TRUE(second);
    EXPECT_FALSE(*second);
    const auto waited = FileLock::Wait(path, [] { return Status(Unavailable("enough")); });
    ASSERT_FALSE(waited);
    EXPECT_EQ(waited.error().message, "enough");
  }
  const auto third = FileLock::Try(path);
  EXPECT_TRUE(third && *third);
}

class HubCacheTest : public ::testing::Test {
 protected:
  void SetUp() override {
    options_.cache = folder_.path();
    repo_ = *ParseHubRepo("org/name");
    auto cache = HubCache::At(options_, repo_);
    ASSERT_TRUE(cache);
    cache_.emplace(std::move(*cache));
    ASSERT_TRUE(cache_->Prepare());
  }

  void Put(const std::string& file, const std::string& content) {
    const std::string hash = "hash-of-" + file;
    std::ofstream(cache_->Blob(hash)) << content;
    ASSERT_TRUE(cache_->Link(kCommit, file, hash));
  }

  const TempFolder folder_;
  HubOptions options_;
  HubRepo repo_;
  std::optional<HubCache> cache_;
};

TEST_F(HubCacheTest, ASnapshotIsFoundWhenItIsWhole) {
  EXPECT_THAT(FindSnapshot(options_, repo_, true, false).error().message,
              HasSubstr("org/name is not in the cache"));
  Put("config.json", "{}");
  ASSERT_TRUE(cache_->WriteRef(kCommit));
  EXPECT_THAT(FindSnapshot(options_, repo_, true, false).error().message,
              HasSubstr("lacks model.safetensors"));
  EXPECT_TRUE(FindSnapshot(options_, repo_, /*weights=*/false, false));
  Put("model.safetensors", "x");
  const auto found = FindSnapshot(options_, repo_, true, false);
  ASSERT_TRUE(found) << found.error().message;
  EXPECT_EQ(*found, cache_->Snapshot(kCommit));
  // Also by its commit, which has no ref.
  EXPECT_TRUE(FindSnapshot(options_, *ParseHubRepo("org/name@" + kCommit), true, false));
}

TEST_F(HubCacheTest, EveryShardOfTheIndexIsWanted) {
  Put("config.json", "{}");
  Put("model.safetensors.index.json",
      R"({"weight_map": {"a": "s1.safetensors", "b": "s2.safetensors", "c": "s1.safetensors"}})");
  Put("model.safetensors", "that of before");
  EXPECT_THAT(cache_->Missing(kCommit, true, false),
              ElementsAre("s1.safetensors", "s2.safetensors"));
  Put("s1.safetensors", "x");
  Put("s2.safetensors", "x");
  EXPECT_THAT(cache_->Missing(kCommit, true, false), IsEmpty());
  // A link to a missing blob counts as missing.
  std::filesystem::remove(cache_->Blob("hash-of-s2.safetensors"));
  EXPECT_THAT(cache_->Missing(kCommit, true, false), ElementsAre("s2.safetensors"));
}

TEST_F(HubCacheTest, ATokenizerIsMissedUntilTheHubSaidThatThereIsNone) {
  Put("config.json", "{}");
  EXPECT_THAT(cache_->Missing(kCommit, false, true), ElementsAre("tokenizer.json"));
  ASSERT_TRUE(cache_->NoteAbsent(kCommit, "tokenizer.json"));
  EXPECT_THAT(cache_->Missing(kCommit, false, true), ElementsAre("tokenizer.json"));
  ASSERT_TRUE(cache_->NoteAbsent(kCommit, "tokenizer.model"));
  EXPECT_THAT(cache_->Missing(kCommit, false, true), IsEmpty());
}

TEST_F(HubCacheTest, ARefThatIsNoCommitIsNone) {
  std::filesystem::create_directories(cache_->folder() + "/refs");
  std::ofstream(cache_->folder() + "/refs/main") << "../../elsewhere";
  EXPECT_EQ(cache_->Commit(), "");
}

TEST(Shards, NamesThatAreNoFilesOfTheFolderAreRefused) {
  for (const char* name : {"../x.safetensors", "/x.safetensors", "x.bin", "", ".x.safetensors"}) {
    const std::string index =
        R"({"weight_map": {"model.norm.weight": ")" + std::string(name) + "\"}}";
    EXPECT_FALSE(ShardsOf(index, "index")) << name;
  }
  EXPECT_FALSE(ShardsOf("{}", "index"));
  EXPECT_FALSE(ShardsOf("nonsense", "index"));
}

// Their sizes are summed, and each may be as large as a disk.
TEST(Shards, MoreThanAnyModelHasAreRefused) {
  const auto index = [](size_t files) {
    std::string text = R"({"weight_map": {)";
    for (size_t i = 0; i < files; ++i)
      text += (i > 0 ? ",\"t" : "\"t") + std::to_string(i) + "\":\"s" + std::to_string(i) +
              ".safetensors\"";
    return text + "}}";
  };
  EXPECT_TRUE(ShardsOf(index(kMaxShards), "index"));
  const auto more = ShardsOf(index(kMaxShards + 1), "index");
  ASSERT_FALSE(more);
  EXPECT_EQ(more.error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace aisp
