// The load client as a user runs it, against a real cluster: consistent counts, complete report
// files, no blocks left in use.
#include <gmock/gmock.h>

#include <algorithm>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"

namespace aisp::e2e {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

// The idle state of a worker's pool; cached blocks count as available.
struct Pool {
  std::string admin;
  double available = 0;
};

// Nothing runs, nothing waits, and every block is back.
bool IsIdle(const Pool& pool) {
  return Metric(pool.admin, "aisp_num_requests_running") == 0 &&
         Metric(pool.admin, "aisp_num_requests_waiting") == 0 &&
         Metric(pool.admin, "aisp_kv_blocks_quarantined") == 0 &&
         Metric(pool.admin, "aisp_kv_blocks_available") == pool.available;
}

TEST(Loadgen, TwoHundredRequestsWithCancelsAddUpAndLeaveNoBlockBehind) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  std::vector<Pool> pools;
  for (auto* group : {&cluster.prefill, &cluster.decode}) {
    for (auto& worker : *group) pools.push_back({worker->Await("admin"), 0});
  }
  for (Pool& pool : pools) pool.available = Metric(pool.admin, "aisp_kv_blocks_available");
  ASSERT_GT(pools.back().available, 0);
  const TempFile result("result.json");
  const TempFile csv("requests.csv");
  const LoadgenRun ran =
      RunLoadgen("--base-url http://" + cluster.http() +
                 " --wait-ready 20 --seed 1 --num-prompts 200 --request-rate 100 --input-len 96 "
                 "--output-len 24 --ignore-eos --cancel-rate 0.1 --goodput ttft:60000 "
                 "--save-result --result-filename " +
                 result.path() + " --csv " + csv.path());
  ASSERT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, AllOf(HasSubstr("Successful requests:"), HasSubstr("Mean TTFT (ms):"),
                                HasSubstr("Cancelled by this client:")));
  const Json json = ReadJson(result);
  ASSERT_TRUE(json.is_object()) << ran.output;
  for (const char* key :
       {"duration", "completed", "failed", "total_input_tokens", "total_output_tokens",
        "request_throughput", "request_goodput", "output_throughput", "total_token_throughput"}) {
    EXPECT_TRUE(json.contains(key)) << key;
  }
  for (const std::string metric : {"ttft", "tpot", "itl", "e2el"}) {
    for (const std::string what : {"mean", "median", "std", "p99"}) {
      std::string key = what;
      key.append("_").append(metric).append("_ms");
      ASSERT_TRUE(json.contains(key)) << key;
      EXPECT_GT(json[key].get<double>(), 0) << key;
    }
  }
  const int completed = json["completed"];
  const int cancelled = json["cancelled"];
  EXPECT_EQ(json["failed"], 0);
  EXPECT_EQ(completed + cancelled, 200);
  EXPECT_GT(cancelled, 5);
  EXPECT_LT(cancelled, 45);
  EXPECT_EQ(json["total_output_tokens"], completed * 24);
  EXPECT_NEAR(json["total_input_tokens"].get<double>(), completed * 96, completed * 5);
  const std::string rows = csv.Read();
  EXPECT_EQ(std::count(rows.begin(), rows.end(), '\n'), 201);
  for (const Pool& pool : pools) {
    EXPECT_TRUE(Eventually([&] { return IsIdle(pool); })) << pool.admin;
  }
}

TEST(Loadgen, GreedyTextsAreComparedAcrossRuns) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const TempFile first("first.json");
  const std::string common = "--base-url http://" + cluster.http() +
                             " --wait-ready 20 --num-prompts 12 --input-len 40 --output-len 16 "
                             "--temperature 0 --max-concurrency 6 ";
  const LoadgenRun once = RunLoadgen(common + "--save-detailed --result-filename " + first.path());
  ASSERT_EQ(once.code, 0) << once.output;
  // Another order, cancels and possibly other routes: the same texts.
  const LoadgenRun again =
      RunLoadgen(common + "--request-rate 50 --cancel-rate 0.2 --compare " + first.path());
  EXPECT_EQ(again.code, 0) << again.output;
  EXPECT_THAT(again.output, HasSubstr("all equal"));
  Json forged = ReadJson(first);
  for (Json& request : forged["requests"]) request["texts"][0] = "something else";
  const TempFile other("forged.json", forged.dump());
  const LoadgenRun differs = RunLoadgen(common + "--compare " + other.path());
  EXPECT_EQ(differs.code, 1);
  EXPECT_THAT(differs.output, HasSubstr("TEXTS DIFFER"));
}

TEST(Loadgen, ChatsAndSharedPrefixesWorkToo) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const TempFile trace(
      "trace.jsonl",
      R"({"timestamp": 0, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]})"
      "\n"
      R"({"timestamp": 100, "input_length": 1024, "output_length": 8, "hash_ids": [1, 2]})"
      "\n"
      R"({"timestamp": 200, "input_length": 90000, "output_length": 8, "hash_ids": [1, 3]})"
      "\n");
  const TempFile result("trace_result.json");
  const LoadgenRun ran = RunLoadgen(
      "--base-url http://" + cluster.http() +
      " --wait-ready 20 --dataset-name mooncake --dataset-path " + trace.path() +
      " --time-scale 10 --max-concurrency 1 --save-result --result-filename " + result.path());
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("1 of 3 requests do not fit"));
  EXPECT_GT(ReadJson(result)["total_cached_tokens"].get<int>(), 900);
  const LoadgenRun chat =
      RunLoadgen("--base-url http://" + cluster.http() +
                 " --endpoint /v1/chat/completions --num-prompts 6 --input-len 64 "
                 "--output-len 8 --ignore-eos --num-warmups 2");
  EXPECT_EQ(chat.code, 0) << chat.output;
}

TEST(Loadgen, ConversationsGoOnFromTheRealAnswersAndFindThemCached) {
  // One worker: the router chooses where prompts are computed, and each worker has its own cache.
  Cluster cluster({.prefill = 0, .decode = 1});
  ASSERT_TRUE(cluster.AwaitReady());
  for (const std::string flags :
       {"--endpoint /v1/completions", "--endpoint /v1/chat/completions"}) {
    const TempFile result("turns.json");
    const LoadgenRun ran = RunLoadgen(
        "--base-url http://" + cluster.http() + " " + flags +
        " --wait-ready 20 --turns 4 --num-conversations 6 --max-concurrency 3 --input-len 40 "
        "--output-len 16 --ignore-eos --save-result --result-filename " +
        result.path());
    ASSERT_EQ(ran.code, 0) << ran.output;
    EXPECT_THAT(ran.output, HasSubstr("By turn of the conversation"));
    const Json json = ReadJson(result);
    EXPECT_EQ(json["completed"], 24);
    ASSERT_EQ(json["turns"].size(), 4u);
    for (size_t turn = 1; turn < 4; ++turn) {
      const double input = json["turns"][turn]["input_tokens"];
      // Each prompt contains the 56 tokens of every turn before; most of them are cached.
      EXPECT_GT(input, json["turns"][turn - 1]["input_tokens"].get<double>() + 6 * 40);
      EXPECT_GT(json["turns"][turn]["cached_tokens"].get<double>(), 0.3 * input) << flags;
    }
  }
}

TEST(Loadgen, TheSameTextsComeByGrpc) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string grpc = cluster.router->Await("grpc");
  ASSERT_NE(grpc, "");
  const TempFile http_result("http.json");
  const std::string common =
      " --num-prompts 20 --input-len 50 --output-len 12 --temperature 0 --wait-ready 20 ";
  const LoadgenRun http =
      RunLoadgen("--base-url http://" + cluster.http() + common +
                 "--prompt-format ids --save-detailed --result-filename " + http_result.path());
  ASSERT_EQ(http.code, 0) << http.output;
  const TempFile grpc_result("grpc.json");
  const LoadgenRun same =
      RunLoadgen("--backend aisp-grpc --grpc-address " + grpc + common + "--compare " +
                 http_result.path() + " --save-result --result-filename " + grpc_result.path());
  EXPECT_EQ(same.code, 0) << same.output;
  EXPECT_THAT(same.output, HasSubstr("20 of 20 texts compared, all equal"));
  EXPECT_EQ(ReadJson(grpc_result)["total_input_tokens"], 20 * 50);
  const LoadgenRun cancels = RunLoadgen("--backend aisp-grpc --grpc-address " + grpc + common +
                                        "--max-concurrency 4 --cancel-rate 0.5 --request-rate 100");
  EXPECT_EQ(cancels.code, 0) << cancels.output;
}

TEST(Loadgen, WrongFlagsAndAServerThatIsNotThereAreSaidPlainly) {
  const LoadgenRun flag = RunLoadgen("--num-promts 5");
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.output, HasSubstr("did you mean --num-prompts?"));
  const LoadgenRun nobody = RunLoadgen("--base-url http://127.0.0.1:1 --num-prompts 1");
  EXPECT_EQ(nobody.code, 1);
  EXPECT_THAT(nobody.output, AllOf(HasSubstr("127.0.0.1:1"), HasSubstr("--wait-ready")));
}

}  // namespace
}  // namespace aisp::e2e
