// Which adapters a worker loads and drops on its routers' messages.
#include "worker/adapter_keeper.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <utility>

#include "common/clock.h"

namespace aisp {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

// An executor with adapter slots and nothing else.
class Places final : public Executor {
 public:
  explicit Places(size_t count) : slots(count) {
    layout_.num_layers = layout_.num_kv_heads = 1;
    layout_.head_dim = layout_.block_tokens = 16;
    layout_.num_blocks = 8;
  }
  int max_depth() const override { return 1; }
  const KvLayout& kv_layout() const override { return layout_; }
  int32_t max_context() const override { return 64; }
  int32_t max_batch_tokens() const override { return 64; }
  int32_t max_slots() const override { return 4; }
  int32_t vocabulary() const override { return 64; }
  int32_t adapter_slots() const override { return static_cast<int32_t>(slots.size()); }
  int32_t FindAdapter(std::string_view digest) const override {
    const auto at = std::find(slots.begin(), slots.end(), digest);
    return at == slots.end() ? -1 : static_cast<int32_t>(at - slots.begin());
  }
  std::string_view AdapterIn(int32_t slot) const override {
    return slots[static_cast<size_t>(slot)];
  }
  Status SetAdapter(int32_t slot, PackedAdapter adapter) override {
    slots[static_cast<size_t>(slot)] = adapter.digest;
    return {};
  }
  Result<Ticket> Launch(const StepInput&) override { return Internal("nothing runs here"); }
  Result<StepResult> Collect(Ticket) override { return Internal("nothing runs here"); }

  std::vector<std::string> slots;

 private:
  KvLayout layout_;
};

constexpr LinkId kRouter{1}, kOther{2};

class Keeper : public testing::Test {
 protected:
  Keeper() {
    executor_.slots[0] = "g";
    keeper_.Wire(&engine_);
    keeper_.OnChange([this] { ++changes_; });
  }
  static v1::AdapterSet Set(uint64_t version, const std::vector<std::string>& digests) {
    v1::AdapterSet set;
    set.set_version(version);
    for (const std::string& digest : digests) {
      v1::Adapter* each = set.add_adapters();
      each->set_name("name of " + digest);
      each->set_digest(digest);
      each->set_path("/" + digest);
    }
    return set;
  }
  void Load(LinkId link, const std::string& path) {
    v1::LoadAdapter asked;
    asked.set_nonce(5);
    asked.set_name("any");
    asked.set_path(path);
    keeper_.Load(link, asked,
                 [this](v1::AdapterAnswer said) { answers_.push_back(std::move(said)); });
  }
  // The oldest load completes: the digest is from its path, or this one.
  void Read(const std::string& digest = "") {
    ASSERT_FALSE(reading_.empty());
    const auto [path, done] = reading_.front();
    reading_.pop_front();
    if (digest == "broken") return done(InvalidArgument(path + " is broken"));
    PackedAdapter adapter;
    adapter.digest = digest.empty() ? path.substr(1) : digest;
    done(std::move(adapter));
  }
  std::vector<std::string> Has() {
    std::vector<std::string> out;
    for (const std::string& each : executor_.slots) {
      if (!each.empty()) out.push_back(each);
    }
    return out;
  }

  Places executor_{3};
  ManualClock clock_;
  Engine engine_{EngineOptions(), &executor_, &clock_, nullptr};
  std::deque<std::pair<std::string, AdapterKeeper::OnLoaded>> reading_;
  AdapterKeeper keeper_{Set(0, {"g"}), [this](const std::string&, const std::string& path,
                                              AdapterKeeper::OnLoaded done) {
                          reading_.emplace_back(path, std::move(done));
                        }};
  std::vector<v1::AdapterAnswer> answers_;
  int changes_ = 0;
};

TEST_F(Keeper, OneOnTrialStaysWhenTheNextSetHasIt) {
  Load(kRouter, "/1");
  EXPECT_THAT(Has(), ElementsAre("g"));
  Read();
  ASSERT_EQ(answers_.size(), 1u);
  EXPECT_EQ(answers_[0].digest(), "1");
  EXPECT_EQ(answers_[0].nonce(), 5u);
  EXPECT_TRUE(engine_.HasAdapter("1"));
  keeper_.Take(Set(1, {"g", "1"}));
  EXPECT_THAT(reading_, IsEmpty());
  EXPECT_THAT(Has(), ElementsAre("g", "1"));
  EXPECT_EQ(keeper_.Report().set().version(), 1u);
  EXPECT_THAT(keeper_.Report().digests(), ElementsAre("1", "g"));
  EXPECT_EQ(changes_, 1);
}

TEST_F(Keeper, OneOnTrialGoesWithASetWithoutItOrWithItsRouter) {
  Load(kRouter, "/1");
  Read();
  keeper_.Take(Set(0, {"g"}));  // the same again
  EXPECT_THAT(Has(), ElementsAre("g"));
  Load(kRouter, "/2");
  Load(kOther, "/2");
  Read();
  Read();
  keeper_.OnLinkDown(kRouter);
  EXPECT_THAT(Has(), ElementsAre("g", "2")) << "another router tries it too";
  keeper_.OnLinkDown(kOther);
  EXPECT_THAT(Has(), ElementsAre("g"));
  // Its router is gone before it is loaded.
  Load(kRouter, "/3");
  keeper_.OnLinkDown(kRouter);
  Read();
  EXPECT_THAT(Has(), ElementsAre("g"));
  EXPECT_EQ(answers_.size(), 3u);
}

TEST_F(Keeper, WhatASetHasMoreIsLoadedAndWhatItLacksIsDropped) {
  keeper_.Take(Set(3, {"1", "2"}));
  EXPECT_THAT(Has(), IsEmpty());
  Read();
  Read();
  EXPECT_THAT(Has(), ElementsAre("1", "2"));
  keeper_.Take(Set(2, {"g"}));  // late
  EXPECT_THAT(Has(), ElementsAre("1", "2"));
  keeper_.Take(Set(4, {"2", "3"}));
  keeper_.Take(Set(5, {"2"}));
  Read();  // no longer wanted
  EXPECT_THAT(Has(), ElementsAre("2"));
  EXPECT_THAT(keeper_.Report().digests(), ElementsAre("2"));
}

TEST_F(Keeper, WhatCannotBeLoadedIsReportedAndTriedAgainWithTheNextSet) {
  keeper_.Take(Set(1, {"g", "1", "2"}));
  Read("broken");
  Read("9");
  ASSERT_EQ(keeper_.Report().troubles_size(), 2);
  EXPECT_EQ(keeper_.Report().troubles(0).message(), "/1 is broken");
  EXPECT_THAT(keeper_.Report().troubles(1).message(), HasSubstr("give all workers the same files"));
  EXPECT_THAT(Has(), ElementsAre("g"));
  keeper_.Take(Set(2, {"g", "1"}));
  Read();
  EXPECT_EQ(keeper_.Report().troubles_size(), 0);
  EXPECT_THAT(Has(), ElementsAre("g", "1"));
}

TEST_F(Keeper, WithoutAPlaceItSaysSo) {
  for (const char* path : {"/1", "/2", "/3"}) {
    Load(kRouter, path);
    Read();
  }
  ASSERT_EQ(answers_.size(), 3u);
  EXPECT_TRUE(answers_[2].has_error());
  EXPECT_THAT(answers_[2].error().message(), HasSubstr("--max-loras"));
}

}  // namespace
}  // namespace aisp
