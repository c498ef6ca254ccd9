// The commands as a person types them: help, version, one-off answers, what goes wrong and what is then said.
#include <gmock/gmock.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <fstream>

#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::HasSubstr;

TEST(Commands, HelpVersionAndConfigAnswerWithoutStartingAnything) {
  EXPECT_THAT(RunAisp("--version").output, HasSubstr("aisp 0."));
  for (const char* command : {"serve", "up", "generate", "info"}) {
    const Ran help = RunAisp(std::string(command) + " --help");
    EXPECT_EQ(help.code, 0) << command;
    EXPECT_THAT(help.output, HasSubstr("--model")) << command;
  }
  EXPECT_THAT(RunAisp("serve --port 1234 --print-config").output, HasSubstr("port: 1234"));
}

TEST(Commands, AWrongCommandLineIsExitCodeTwoAndNamesWhatIsWrong) {
  const Ran unknown = RunAisp("sever");
  EXPECT_EQ(unknown.code, 2);
  EXPECT_THAT(unknown.output, HasSubstr("known: up, serve, generate, drain, info"));
  const Ran flag = RunAisp("serve --prot 1");
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.output, HasSubstr("did you mean --port?"));
  EXPECT_EQ(RunAisp("generate").code, 2);
}

TEST(Commands, GenerateTellsTheRecordedStory) {
  const Recorded story = RecordedStories().front();
  const std::string prompt = story.messages[0]["content"];
  const Ran ran = RunAisp("generate --dtype=f32 --temperature 0 \"" + prompt + "\"");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.output, story.text + "\n");
}

TEST(Commands, ACheckpointWithoutATokenizerIsAskedByTokenIds) {
  const std::string folder = AISP_SOURCE_DIR "/tests/data/goldens/llama";
  std::ifstream in(folder + "/expected.json");
  const Json recorded = Json::parse(in)["cases"][2];
  std::string prompt;
  for (const int id : recorded["prompt"])
    prompt += (prompt.empty() ? "" : ",") + std::to_string(id);
  std::string expected;
  for (const int id : recorded["greedy"]) expected += std::to_string(id) + " ";
  const Ran ran = RunAisp("generate --model " + folder +
                          " --temperature 0 --max-tokens 24 --token-ids " + prompt);
  EXPECT_EQ(ran.output, expected + "\n");
  EXPECT_THAT(RunAisp("info " + folder).output, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(RunAisp("generate --model " + folder + " hello").output, HasSubstr("--token-ids"));
}

TEST(Commands, TheSameSeedGivesTheSameAnswer) {
  const std::string command = "generate --seed 7 --max-tokens 40 \"Tell me a story about a duck.\"";
  const Ran first = RunAisp(command);
  EXPECT_EQ(first.code, 0) << first.output;
  EXPECT_EQ(RunAisp(command).output, first.output);
  EXPECT_NE(RunAisp("generate --seed 8 --max-tokens 40 \"Tell me a story about a duck.\"").output,
            first.output);
}

TEST(Commands, InfoShowsShapeAndKvBytes) {
  const Ran ran = RunAisp("info");
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("LlamaForCausalLM"));
  EXPECT_THAT(ran.output, HasSubstr("4 KiB (bf16)"));
  EXPECT_THAT(RunAisp("info /nonexistent").output, HasSubstr("/nonexistent"));
  EXPECT_EQ(RunAisp("info /nonexistent").code, 1);
}

TEST(Commands, ATakenPortIsNamedWithTheWayOut) {
  Process first(
      {"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0", "--log-level=error"});
  const std::string http = first.Await("http");
  ASSERT_NE(http, "");
  const Ran second = RunAisp("serve --role=router --router-listen=127.0.0.1:0 --port=" +
                             http.substr(http.rfind(':') + 1));
  EXPECT_EQ(second.code, 1);
  EXPECT_THAT(second.output, HasSubstr(http.substr(http.rfind(':') + 1)));
  const std::string workers = first.Await("workers");
  const Ran third = RunAisp("serve --role=router --port=0 --router-listen=" + workers);
  EXPECT_EQ(third.code, 1);
  EXPECT_THAT(third.output, HasSubstr(workers));
}

TEST(Commands, ACorruptCheckpointIsRefusedWithFileAndTensor) {
  const TempFolder temp;
  const std::string& folder = temp.path();
  ASSERT_EQ(std::system(("cp -r " AISP_SOURCE_DIR "/models/story-7m/. " + folder).c_str()), 0);
  ASSERT_EQ(std::system(("truncate -s 1000000 " + folder + "/model.safetensors").c_str()), 0);
  const Ran ran = RunAisp("generate --model " + folder + " hello");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.output, HasSubstr("model.safetensors"));
}

// One shell that stops everything: what `up` starts must be gone when it is.
TEST(Commands, UpStartsEveryProcessTellsAStoryAndStopsAllOfThem) {
  const TempFile log("up.log");
  const std::string command = "timeout -s INT 60 " AISP_BINARY_DIR
                              "/bin/aisp up --demo --port 0 > " +
                              log.path() + " 2>&1 & echo $!";
  FILE* pipe = popen(command.c_str(), "r");
  ASSERT_NE(pipe, nullptr);
  int shell_pid = 0;
  ASSERT_EQ(fscanf(pipe, "%d", &shell_pid), 1);
  const auto text = [&] { return log.Read(); };
  ASSERT_TRUE(Eventually([&] {
    return text().find("Ctrl-C stops everything") != std::string::npos;
  })) << text();
  EXPECT_THAT(text(), HasSubstr("KV blocks moved from the prefill to the decode worker over shm"));
  EXPECT_THAT(text(), HasSubstr("TTFT"));
  kill(shell_pid, SIGINT);
  pclose(pipe);
  EXPECT_TRUE(Eventually([&] { return kill(shell_pid, 0) != 0; }));
  const std::string address = text().substr(text().find("http://") + 7);
  const auto port = std::stoi(address.substr(address.find(':') + 1));
  EXPECT_FALSE(
      HttpClient::Connect("127.0.0.1", static_cast<uint16_t>(port), std::chrono::seconds(1)));
}

TEST(Commands, UpGivesItsWorkersDevicesInTurn) {
  const Ran ran = RunAisp("up --port 0 --prefill 1 --decode 2 --devices cpu,tpu --log-level error");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.output, HasSubstr("model.device = 'tpu'"));
  EXPECT_THAT(ran.output, HasSubstr("decode-0 ended while starting"));
}

TEST(Commands, AWorkerWhoseFingerprintDiffersIsRefusedWithBothValues) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string workers = cluster.router->Await("workers");
  const TempFile log("refused.log");
  Process odd({"serve", "--role=decode", "--worker-id=odd", "--block-size=32",
               "--routers=" + workers, "--log-level=warning"},
              log.path());
  ASSERT_TRUE(Eventually([&] {
    const std::string text = log.Read();
    return text.find("16") != std::string::npos && text.find("32") != std::string::npos &&
           text.find("block_tokens") != std::string::npos;
  }));
  EXPECT_EQ(Connect(odd.Await("admin")).Request("GET", "/ready")->status, 503);
}

}  // namespace
}  // namespace aisp::e2e
