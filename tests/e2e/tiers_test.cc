// Prefixes that outlive the KV pool and the process: the same text, found instead of computed.
#include <gmock/gmock.h>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using std::chrono::seconds;

std::vector<std::string> Serve(const std::vector<std::string>& more) {
  std::vector<std::string> args = {"serve", "--role=all", "--port=0", "--no-grpc",
                                   "--log-level=warning"};
  args.insert(args.end(), more.begin(), more.end());
  return args;
}

// Its address once it accepts requests; "" if it does not.
std::string AwaitServing(Process& server) {
  const std::string http = server.Await("http");
  const auto serves = [&] { return Connect(http).Request("GET", "/ready")->status == 200; };
  return !http.empty() && Eventually(serves) ? http : "";
}

int Cached(const Reply& reply) { return reply.usage["prompt_tokens_details"]["cached_tokens"]; }

TEST(Tiers, ARestartKeepsTheDisksPrefixes) {
  TempFolder folder;
  const std::vector<std::string> flags = {"--kv.disk_path=" + folder.path() + "/kv",
                                          "--kv.disk_bytes=64MiB", "--kv.host_memory=16MiB"};
  const std::string prompt = Prose(400, 1);
  std::string text;
  {
    Process server(Serve(flags));
    const std::string http = AwaitServing(server);
    ASSERT_NE(http, "");
    const Reply first = Complete(http, prompt, 24, "");
    ASSERT_EQ(first.error, "");
    EXPECT_EQ(Cached(first), 0);
    text = first.text;
    // At least every whole block of the prompt.
    const int blocks = first.usage["prompt_tokens"].get<int>() / 16;
    ASSERT_TRUE(
        Eventually([&] { return Metric(http, "aisp_kv_tier_stored_blocks_total") >= 2 * blocks; },
                   seconds(20)));
    server.Signal(SIGKILL);
    server.AwaitExit(seconds(10));
  }
  Process server(Serve(flags));
  const std::string http = AwaitServing(server);
  ASSERT_NE(http, "");
  const Reply again = Complete(http, prompt, 24, "");
  ASSERT_EQ(again.error, "");
  EXPECT_GT(Cached(again), 300);
  EXPECT_EQ(again.text, text);
  EXPECT_TRUE(Eventually([&] { return Metric(http, "aisp_kv_tier_loaded_blocks_total") > 10; },
                         seconds(5)));
}

TEST(Tiers, ASmallPoolFindsItsPrefixesInHostMemory) {
  Process server(Serve({"--kv-blocks=66", "--max-model-len=1024", "--kv.host_memory=64MiB"}));
  const std::string http = AwaitServing(server);
  ASSERT_NE(http, "");
  constexpr int kPrompts = 4;
  std::vector<std::string> texts;
  for (int which = 0; which < kPrompts; ++which)
    texts.push_back(Complete(http, Prose(400, which), 8, "").text);
  // Each round asks for what the round before has evicted. If loading a prefix takes longer than
  // computing it, as on a busy machine, it is computed; so each prefix has several rounds to be
  // found.
  std::set<int> found;
  for (int round = 0; round < 10 && found.size() < kPrompts; ++round) {
    for (int which = 0; which < kPrompts; ++which) {
      const Reply reply = Complete(http, Prose(400, which), 8, "");
      ASSERT_EQ(reply.error, "");
      EXPECT_EQ(reply.text, texts[static_cast<size_t>(which)]);
      // A promotion takes at most a part of a small pool.
      if (Cached(reply) > 200) found.insert(which);
    }
  }
  EXPECT_EQ(found.size(), kPrompts);
  EXPECT_TRUE(Eventually([&] { return Metric(http, "aisp_kv_tier_loaded_blocks_total") > 20; },
                         seconds(5)));
}

TEST(Tiers, AFolderThatCannotBeUsedIsSaidAtTheStart) {
  const Ran ran = RunAisp("serve --role=all --port=0 --kv.disk_path=/proc/no/such/folder");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, ::testing::HasSubstr("kv.disk_path"));
}

TEST(Tiers, BytesOfADiskWithoutAFolderAreRefused) {
  const Ran ran = RunAisp("serve --role=all --port=0 --kv-disk-bytes=1GiB");
  EXPECT_NE(ran.code, 0);
  EXPECT_THAT(ran.output, ::testing::HasSubstr("there is no kv.disk_path"));
}

}  // namespace
}  // namespace aisp::e2e
