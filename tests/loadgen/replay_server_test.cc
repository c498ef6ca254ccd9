// The replay server and the client together: the client must measure the server's settings.
#include "loadgen/replay_server.h"

#include <gmock/gmock.h>

#include "tests/loadgen/replay_fixture.h"

namespace aisp::loadgen {
namespace {

using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;

TEST_F(ReplayTest, ThePaceThatIsServedIsThePaceThatIsMeasured) {
  Serve({.ttft_ms = 60, .tpot_ms = 10});
  const Outcome run = Run({"--num-prompts", "20", "--input-len", "40", "--output-len", "11"});
  EXPECT_EQ(run.summary.completed, 20);
  EXPECT_EQ(run.summary.total_input_tokens, 20 * 40);
  EXPECT_EQ(run.summary.total_output_tokens, 20 * 11);
  // Never faster than the configured pace; how much slower depends on the machine.
  EXPECT_GE(run.summary.ttft_ms.min, 60);
  EXPECT_GE(run.summary.e2el_ms.min, 160);
}

TEST_F(ReplayTest, ARecordingIsPlayedRequestByRequest) {
  Serve({}, {{.ttft_ms = 5, .gaps_ms = {}}, {.ttft_ms = 120, .gaps_ms = {30}}});
  const Outcome run = Run(
      {"--num-prompts", "4", "--max-concurrency", "1", "--input-len", "4", "--output-len", "2"});
  ASSERT_EQ(run.summary.completed, 4);
  for (size_t i = 0; i < 4; i += 2) {
    EXPECT_GE(run.records[i].ttft_ms(true), 5);
    EXPECT_GE(run.records[i + 1].ttft_ms(true), 120);
    EXPECT_GE(run.records[i + 1].e2el_ms(true), 150);
  }
}

TEST_F(ReplayTest, AServerThatStopsInMidStreamIsAFailureWithItsReason) {
  Serve({.tpot_ms = 1, .cut_after = 5});
  for (const std::string endpoint : {"/v1/completions", "/v1/chat/completions"}) {
    const Outcome run = Run(
        {"--num-prompts", "3", "--input-len", "16", "--output-len", "20", "--endpoint", endpoint});
    EXPECT_EQ(run.summary.failed, 3);
    EXPECT_EQ(run.summary.completed, 0);
    for (const RequestRecord& r : run.records) {
      EXPECT_THAT(r.reason, AnyOf(HasSubstr("connection"), HasSubstr("truncated")));
      EXPECT_EQ(r.output_tokens, 5);
    }
  }
}

TEST_F(ReplayTest, ChatsBatchesOfTokensAndWholeAnswersWorkToo) {
  Serve({.chunk_tokens = 4});
  const Outcome run = Run({"--num-prompts", "5", "--output-len", "10", "--input-len", "30",
                           "--endpoint", "/v1/chat/completions", "--save-detailed"});
  EXPECT_EQ(run.summary.completed, 5);
  EXPECT_EQ(run.summary.total_output_tokens, 50);
  for (const RequestRecord& r : run.records) {
    EXPECT_EQ(r.chunks, 3);  // 4 + 4 + 2
    EXPECT_EQ(r.texts[0], " word word word word word word word word word word");
  }
}

TEST_F(ReplayTest, ManyThousandTokensASecondFitThroughOneConnectionEach) {
  Serve({});
  const Outcome run = Run({"--num-prompts", "400", "--max-concurrency", "50", "--input-len", "20",
                           "--output-len", "100"});
  EXPECT_EQ(run.summary.completed, 400);
  EXPECT_EQ(run.summary.total_output_tokens, 40000);
  ReplayCounts counts;
  loop_.On([&] { counts = server_->counts(); });
  EXPECT_EQ(counts.tokens, 40000);
  EXPECT_EQ(counts.gone, 0);
}

TEST(ReplayRequest, IsReadWithoutATree) {
  const auto ids = ReadReplayRequest(R"({"prompt":[1,22,333],"max_tokens":9,"stream":true})");
  EXPECT_TRUE(ids.stream);
  EXPECT_EQ(ids.max_tokens, 9);
  EXPECT_EQ(ids.prompt_tokens, 3);
  const auto chat = ReadReplayRequest(
      R"({"messages":[{"role":"user","content":"one two"},{"role":"assistant","content":"three"}]})");
  EXPECT_EQ(chat.prompt_tokens, 3);
  EXPECT_FALSE(chat.stream);
  EXPECT_EQ(ReadReplayRequest("nonsense").max_tokens, 16);
  EXPECT_EQ(ReadReplayRequest(R"({"max_tokens":-5})").max_tokens, 1);
}

TEST(Recording, IsOfTheCompletedRequestsOfASavedResult) {
  const auto read = ReadRecording(
      R"({"requests":[{"status":"completed","ttft_ms":12.5,"itls_ms":[1,2]},{"status":"failed"}]})");
  ASSERT_TRUE(read);
  ASSERT_EQ(read->size(), 1u);
  EXPECT_EQ((*read)[0].ttft_ms, 12.5);
  EXPECT_EQ((*read)[0].gaps_ms, (std::vector<double>{1, 2}));
  EXPECT_THAT(ReadRecording("{}").error().message, HasSubstr("--save-detailed"));
  EXPECT_FALSE(ReadRecording(R"({"requests":[]})"));
}

}  // namespace
}  // namespace aisp::loadgen
