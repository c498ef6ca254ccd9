// Prefill and decode workers whose KV pools have other formats, as processes. With other block
// sizes every text is that of a decode worker alone. With other number formats, which must be
// allowed, prompts are still prefilled remotely. A worker with a format that is not allowed does
// not register.
#include <gmock/gmock.h>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;

class UnequalWorkers : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& all) {
    cluster_ = std::make_unique<Cluster>(
        ClusterOptions{.prefill = 0, .decode = 0, .flags = all, .router_flags = {}});
    all_ = all;
  }
  std::unique_ptr<Process> Worker(const std::string& role, const std::vector<std::string>& flags,
                                  const std::string& log = "") const {
    std::vector<std::string> args = {"serve", "--role=" + role, "--worker-id=" + role,
                                     "--routers=" + cluster_->router->Await("workers"),
                                     "--log-level=warning"};
    args.insert(args.end(), all_.begin(), all_.end());
    args.insert(args.end(), flags.begin(), flags.end());
    return std::make_unique<Process>(args, log);
  }
  // The texts of some prompts, on a decode worker with these flags that prefills itself.
  std::vector<std::string> Alone(const std::vector<std::string>& all,
                                 const std::vector<std::string>& flags) {
    Start(all);
    const auto decode = Worker("decode", flags);
    EXPECT_NE(decode->Await("ready"), "");
    return Texts("", nullptr);
  }
  std::vector<std::string> Texts(const std::string& how, Process* prefill) const {
    std::vector<std::string> texts;
    for (int which = 0; which < 6; ++which) {
      const Reply reply = Complete(cluster_->http(), Prose(90 + 60 * which, which), 24, how);
      EXPECT_EQ(reply.error, "");
      if (prefill != nullptr) {
        EXPECT_EQ(reply.usage["aisp"].value("fallback", ""), "") << reply.usage.dump();
        EXPECT_GT(reply.usage["aisp"].value("kv_blocks_moved", 0), 0) << reply.usage.dump();
      }
      texts.push_back(reply.text);
    }
    return texts;
  }
  std::unique_ptr<Cluster> cluster_;
  std::vector<std::string> all_;
};

TEST_F(UnequalWorkers, WithBlocksOfOtherSizesTextsAreThoseOfADecodeWorkerAlone) {
  const std::vector<std::string> alone = Alone({}, {"--engine.block_tokens=32"});
  const std::pair<int, int> sizes[] = {{16, 64}, {64, 16}, {128, 32}};
  for (const auto& [ours, theirs] : sizes) {
    for (const char* lane : {"shm", "tcp"}) {
      SCOPED_TRACE(testing::Message() << ours << " to " << theirs << " over " << lane);
      Start({std::string("--transports=") + lane});
      const auto prefill = Worker("prefill", {"--engine.block_tokens=" + std::to_string(ours)});
      const auto decode = Worker("decode", {"--engine.block_tokens=" + std::to_string(theirs)});
      ASSERT_NE(prefill->Await("ready"), "");
      ASSERT_NE(decode->Await("ready"), "");
      EXPECT_EQ(Texts("remote", prefill.get()), alone);
      const std::string admin = decode->Await("admin");
      EXPECT_GT(Metric(admin, "aisp_kv_verified_blocks_total"), 0);
      EXPECT_EQ(Metric(admin, "aisp_kv_data_loss_total"), 0);
      EXPECT_EQ(Metric(prefill->Await("admin"), "aisp_kv_converted_bytes_total"), 0);
    }
  }
}

TEST_F(UnequalWorkers, OtherNumbersAreConvertedWhereAllAllowIt) {
  const std::vector<std::string> mixed = {"--allow-mixed-precision"};
  const std::pair<const char*, const char*> formats[] = {
      {"f32", "bf16"}, {"f32", "fp8"}, {"bf16", "fp8"}, {"fp8", "f32"}};
  for (const auto& [ours, theirs] : formats) {
    SCOPED_TRACE(testing::Message() << ours << " to " << theirs);
    const std::string format = std::string("--kv-dtype=") + theirs;
    const std::vector<std::string> alone = Alone(mixed, {format});
    Start(mixed);
    const auto prefill =
        Worker("prefill", {std::string("--kv-dtype=") + ours, "--engine.block_tokens=16"});
    const auto decode = Worker("decode", {format, "--engine.block_tokens=64"});
    ASSERT_NE(prefill->Await("ready"), "");
    ASSERT_NE(decode->Await("ready"), "");
    const std::vector<std::string> texts = Texts("remote", prefill.get());
    // KV that is rounded once is close to KV of which every layer read rounded KV, but not equal.
    size_t equal = 0;
    for (size_t i = 0; i < texts.size(); ++i) equal += texts[i] == alone[i] ? 1 : 0;
    std::printf("%s to %s: %zu of %zu texts are those of %s alone\n", ours, theirs, equal,
                texts.size(), theirs);
    EXPECT_GT(Metric(prefill->Await("admin"), "aisp_kv_converted_bytes_total"), 0);
    EXPECT_GT(Metric(decode->Await("admin"), "aisp_kv_verified_blocks_total"), 0);
    EXPECT_EQ(Metric(decode->Await("admin"), "aisp_kv_data_loss_total"), 0);
  }
}

TEST_F(UnequalWorkers, OtherNumbersThatNobodyAllowedDoNotRegister) {
  Start({});
  const auto decode = Worker("decode", {"--kv-dtype=bf16"});
  ASSERT_NE(decode->Await("ready"), "");
  const TempFile log("prefill.log");
  const auto prefill = Worker("prefill", {"--kv-dtype=f32"}, log.path());
  const auto said = [&log] { return log.Read(); };
  EXPECT_TRUE(
      Eventually([&] { return said().find("--allow-mixed-precision") != std::string::npos; }));
  EXPECT_THAT(said(), HasSubstr("kv bf16"));
  EXPECT_THAT(said(), HasSubstr("kv f32"));
  EXPECT_EQ(prefill->Await("ready", std::chrono::milliseconds(100)), "");
}

}  // namespace
}  // namespace aisp::e2e
