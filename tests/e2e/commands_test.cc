// The commands as a user types them: help, version, one-off answers, errors and their messages.
#include <fcntl.h>
#include <gmock/gmock.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <fstream>
#include <vector>

#include "net/listen_socket.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"
#include "tests/e2e/loadgen_run.h"
#include "tests/support/temp_files.h"

namespace aisp::e2e {
namespace {

using ::testing::AllOf;
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
  EXPECT_THAT(
      unknown.output,
      HasSubstr(
          "known: up, serve, generate, pull, drain, role, planner, top, status, trace, doctor"));
  const Ran flag = RunAisp("serve --prot 1");
  EXPECT_EQ(flag.code, 2);
  EXPECT_THAT(flag.output, HasSubstr("did you mean --http.port (--port)?"));
  EXPECT_EQ(RunAisp("generate").code, 2);
  const auto refused = [](const std::string& arguments, const std::string& why) {
    const Ran ran = RunAisp(arguments);
    EXPECT_NE(ran.code, 0) << arguments;
    EXPECT_THAT(ran.output, HasSubstr(why)) << arguments;
  };
  refused("serve --config " AISP_SOURCE_DIR, "is a directory");
  refused("serve --transports tcpp", "got 'tcpp'");
  refused("generate --max-tokens abc hi", "--max-tokens wants a whole number, got 'abc'");
  refused("generate --temperature 9 hi", "--temperature 9 is out of range; allowed: 0 to 2");
  refused("generate --kv-blocks 1 hi", "engine.kv_blocks (--kv-blocks) = 1");
}

// A command that computes has nothing to clean up: Ctrl-C and SIGTERM end it at once.
TEST(Commands, ACommandThatComputesEndsAtASignal) {
  const TempFile schema("never_written");
  for (const int signal : {SIGINT, SIGTERM}) {
    ASSERT_EQ(mkfifo(schema.path().c_str(), 0600), 0);
    const pid_t pid = fork();
    ASSERT_GE(pid, 0);
    if (pid == 0) {
      ::signal(signal, SIG_DFL);  // a shell's background jobs start with SIGINT ignored
      execl(AISP_BINARY_DIR "/bin/aisp", "aisp", "constrain", "--schema", schema.path().c_str(),
            "none.json", nullptr);
      _exit(127);
    }
    // The pipe is open once the command reads its schema, which never comes.
    const int writer = open(schema.path().c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(writer, 0);
    ASSERT_EQ(kill(pid, signal), 0);
    int status = 0;
    ASSERT_EQ(waitpid(pid, &status, 0), pid);
    EXPECT_TRUE(WIFSIGNALED(status));
    EXPECT_EQ(WTERMSIG(status), signal);
    close(writer);
    ASSERT_EQ(unlink(schema.path().c_str()), 0);
  }
}

TEST(Commands, TheMapOfAStepNeedsNoGpu) {
  const Ran map = RunAisp("info --programme --model llama-3.1-8b --quantization fp8 --batch 32");
  EXPECT_EQ(map.code, 0);
  EXPECT_THAT(map.output, HasSubstr("resolved without a GPU"));
  EXPECT_THAT(map.output, HasSubstr("chain 32 tokens"));
  EXPECT_THAT(map.output, HasSubstr("69 launches"));
  const Ran one = RunAisp("info --programme --model llama-3.1-8b --quantization nvfp4 --batch 1");
  EXPECT_THAT(one.output, HasSubstr("one token, consumes slots, publishes slots"));
  const Ran prompt = RunAisp("info --programme --model llama-3.1-8b --rows 1024");
  EXPECT_THAT(prompt.output, HasSubstr("gemm 256x"));
}

TEST(Commands, SimulateComparesPoliciesWithoutAServer) {
  const Ran ran = RunAisp(
      "simulate --workers h200-llama-3.1-8b-fp8:1P1D --policy cost,round-robin --num-prompts 200 "
      "--input-len 512 --output-len 32 --request-rate 20 --goodput ttft:500 tpot:20 --seed 1");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output,
              AllOf(HasSubstr("cost "), HasSubstr("round-robin "), HasSubstr("100.0%")));
  const auto refused = [](const std::string& arguments, const std::string& why) {
    const Ran failed = RunAisp("simulate " + arguments);
    EXPECT_EQ(failed.code, 2) << arguments;
    EXPECT_THAT(failed.output, HasSubstr(why)) << arguments;
  };
  refused("", "--workers is needed");
  refused("--workers mine:2D", "h200-llama-3.1-8b-fp8");
  refused("--workers h200-llama-3.1-8b-fp8:2D --policy dice", "'dice' is no routing policy");
  refused("--workers h200-llama-3.1-8b-fp8:2D --num-promts 5", "did you mean --num-prompts?");
  refused("--workers h200-llama-3.1-8b-fp8:2D --find-rate", "--find-rate needs limits");
}

TEST(Commands, SimulateLearnsWhatWorkersCostFromARouter) {
  Cluster cluster({.prefill = 0, .decode = 1});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string admin = cluster.router->Await("admin");
  ASSERT_NE(admin, "");
  const LoadgenRun load = RunLoadgen("--base-url http://" + cluster.http() +
                                     " --wait-ready 20 --num-prompts 20 --input-len 200 "
                                     "--output-len 40 --ignore-eos --max-concurrency 4");
  ASSERT_EQ(load.code, 0) << load.output;
  // The metrics of the last steps come with the next report.
  Ran learnt;
  ASSERT_TRUE(Eventually([&] {
    learnt = RunAisp("simulate --learn http://" + admin);
    return learnt.code == 0;
  })) << learnt.output;
  const TempFile profile("mine.json", learnt.output);
  // So few a second that even very slow workers, as learned on a busy machine, take all of them.
  const Ran ran =
      RunAisp("simulate --workers " + profile.path() +
              ":2D --num-prompts 50 --input-len 200 --output-len 40 --request-rate 0.2");
  EXPECT_EQ(ran.code, 0) << ran.output;
  EXPECT_THAT(ran.output, HasSubstr("local-no-prefill-worker 50"));
}

TEST(Commands, GenerateTellsTheRecordedStory) {
  const Recorded story = RecordedStories().front();
  const std::string prompt = story.messages[0]["content"];
  const Ran ran = RunAisp("generate --dtype=f32 --temperature 0 \"" + prompt + "\"");
  EXPECT_EQ(ran.code, 0);
  EXPECT_EQ(ran.output, story.text + "\n");
}

TEST(Commands, StatsStandOnALineOfTheirOwnBelowTheAnswer) {
  const Ran ran = RunAisp("generate --stats --seed 1 --max-tokens 5 \"Tell me a story.\"");
  EXPECT_EQ(ran.code, 0);
  EXPECT_THAT(ran.output, HasSubstr("\n\n"));
  EXPECT_THAT(ran.output.substr(ran.output.rfind("\n\n")), HasSubstr("5 generated; TTFT"));
}

TEST(Commands, AnIpv6AddressIsServedAndAskedInBrackets) {
  const auto probe = ListenOn("::1", 0, "");
  if (!probe) GTEST_SKIP() << probe.error().message;
  close(*probe);
  for (const char* host : {"::1", "[::1]"}) {
    const std::string option = std::string("--host=") + host;
    Process server({"serve", option, std::string("--router-admin-host=") + host, "--port=0",
                    "--log-level=warning"});
    const std::string http = server.Await("http");
    EXPECT_THAT(http, ::testing::StartsWith("[::1]:"));
    ASSERT_NE(server.Await("ready"), "");
    const std::string port = http.substr(http.rfind(':') + 1);
    for (const std::string& by : {"--base-url http://" + http, "--host ::1 --port " + port}) {
      const LoadgenRun run = RunLoadgen(by + " --num-prompts 1 --input-len 8 --output-len 4");
      EXPECT_EQ(run.code, 0) << run.output;
    }
    const Ran status = RunAisp("status --router http://" + server.Await("admin"));
    EXPECT_EQ(status.code, 0) << status.output;
    EXPECT_THAT(status.output, HasSubstr("story-7m"));
  }
}

TEST(Commands, ServingIsSaidOnlyOnceRequestsCanBeServed) {
  const TempFile log("serving.log");
  Process router({"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0"}, log.path());
  const std::string workers = router.Await("workers");
  ASSERT_NE(workers, "");
  EXPECT_TRUE(Eventually([&] { return log.Read().find("listening") != std::string::npos; }));
  EXPECT_EQ(log.Read().find("serving"), std::string::npos);
  Process worker({"serve", "--role=decode", "--routers=" + workers, "--log-level=warning"});
  EXPECT_TRUE(Eventually([&] { return log.Read().find("serving") != std::string::npos; }));
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
  EXPECT_THAT(ran.output, HasSubstr("quantisation           none"));
  EXPECT_THAT(ran.output, HasSubstr("on this CPU"));
  EXPECT_THAT(ran.output, HasSubstr("tokenizer"));
  EXPECT_THAT(ran.output, HasSubstr("llama-3.1-8b, "));
  const Ran shape = RunAisp("info llama-3.1-8b --quantization fp8");
  EXPECT_EQ(shape.code, 0) << shape.output;
  EXPECT_THAT(shape.output, HasSubstr("none; served as fp8"));
  EXPECT_THAT(shape.output, HasSubstr("128 KiB (bf16)"));
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

// Checks the tests' own Process class: it receives a server's announcements whichever descriptors
// are free, also if the server's announcement pipe must get one of them.
TEST(Commands, AnAnnouncementArrivesWhicheverDescriptorsAreFree) {
  std::vector<int> held;
  for (int fd = open("/dev/null", O_RDONLY | O_CLOEXEC); fd < 104;
       fd = open("/dev/null", O_RDONLY | O_CLOEXEC))
    held.push_back(fd);
  // Four descriptors are free from number `first` on: one for each end of two pipes.
  for (int first = 94; first <= 100; ++first) {
    for (const int fd : held) {
      if (fd >= first && fd < first + 4) close(fd);
    }
    {
      Process router({"serve", "--role=router", "--port=0", "--router-listen=127.0.0.1:0",
                      "--log-level=error"});
      EXPECT_NE(router.Await("http"), "") << "free from " << first;
    }
    for (const int fd : held) {
      if (fd < first || fd >= first + 4) continue;
      EXPECT_EQ(open("/dev/null", O_RDONLY | O_CLOEXEC), fd);
    }
  }
  for (const int fd : held) close(fd);
}

// A shell that stops `up`: everything that `up` started must be gone with it.
TEST(Commands, UpStartsEveryProcessTellsAStoryAndStopsAllOfThem) {
  const TempFile log("up.log");
  const std::string command = "timeout -s INT 60 " AISP_BINARY_DIR
                              "/bin/aisp up --demo --port 0 --speculative-config '{\"method\": "
                              "\"draft_model\", \"model\": \"story-draft-1m\", \"adaptive\": "
                              "false}' > " +
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
  EXPECT_THAT(text(), HasSubstr("draft tokens accepted"));
  kill(shell_pid, SIGINT);
  pclose(pipe);
  EXPECT_TRUE(Eventually([&] { return kill(shell_pid, 0) != 0; }));
  const std::string address = text().substr(text().find("http://") + 7);
  const auto port = std::stoi(address.substr(address.find(':') + 1));
  // Another test's server may have been given the port meanwhile, but does not keep it long.
  EXPECT_TRUE(Eventually([&] {
    return !HttpClient::Connect("127.0.0.1", static_cast<uint16_t>(port), std::chrono::seconds(1));
  }));
}

TEST(Commands, UpPlansWhereItIsAskedToAndStartsAPlannerAgain) {
  const Ran wrong = RunAisp("up --port 0 --planner maybe --log-level error");
  EXPECT_EQ(wrong.code, 2);
  EXPECT_THAT(wrong.output, HasSubstr("'maybe' is none of auto, on, off"));

  const TempFile log("planned.log");
  Process up({"up", "--port=0", "--prefill=1", "--decode=1", "--planner=on", "--log-level=info"},
             log.path());
  const auto planners = [&] {
    const std::string text = log.Read();
    int count = 0;
    for (size_t at = 0; (at = text.find("id=planner planning", at)) != std::string::npos; ++at)
      ++count;
    return count;
  };
  ASSERT_TRUE(Eventually([&] { return planners() == 1; })) << log.Read();
  const std::string http = up.Await("http");
  ASSERT_NE(http, "");
  const std::string self = "/proc/" + std::to_string(up.pid());
  std::ifstream children(self + "/task/" + std::to_string(up.pid()) + "/children");
  int killed = 0;
  for (pid_t child = 0; children >> child;) {
    std::ifstream words("/proc/" + std::to_string(child) + "/cmdline");
    std::string program, command;
    std::getline(words, program, '\0');
    std::getline(words, command, '\0');
    if (command == "planner") killed += kill(child, SIGKILL) == 0 ? 1 : 0;
  }
  EXPECT_EQ(killed, 1);
  EXPECT_TRUE(Eventually([&] { return planners() == 2; })) << log.Read();
  const auto health = Connect(http.substr(http.rfind('/') + 1)).Request("GET", "/health");
  ASSERT_TRUE(health);
  EXPECT_EQ(health->status, 200);
}

// The example that `up` prints can be pasted: with keys, and for a model without a chat template.
TEST(Commands, TheCurlThatUpPrintsIsAnswered) {
  const TempFolder model;
  ASSERT_EQ(std::system(("cp -r " AISP_SOURCE_DIR "/models/story-7m/. " + model.path() + " && cd " +
                         model.path() +
                         " && rm -f chat_template.jinja && sed -i "
                         "'s/\"chat_template\"/\"no_template\"/' tokenizer_config.json")
                            .c_str()),
            0);
  const TempFile keys("keys.txt", "team:sk-printed-curl\n");
  const TempFile log("curl.log");
  Process up({"up", "--port=0", "--prefill=0", "--decode=1", "--model=" + model.path(),
              "--api-keys-file=" + keys.path(), "--log-level=warning"},
             log.path());
  ASSERT_TRUE(Eventually([&] { return log.Read().find("curl -N") != std::string::npos; }))
      << log.Read();
  const std::string text = log.Read();
  const size_t begin = text.find("curl -N");
  const std::string curl = text.substr(begin, text.find("\n\n", begin) - begin);
  const TempFile script("curl.sh", "AISP_API_KEY=sk-printed-curl\n" + curl + "\n");
  const TempFile answer("curl.out");
  EXPECT_EQ(std::system(("sh " + script.path() + " > " + answer.path() + " 2>&1").c_str()), 0);
  EXPECT_THAT(answer.Read(), HasSubstr("data: [DONE]")) << curl;
}

TEST(Commands, UpRefusesADeviceThatIsNoneBeforeItStartsAnything) {
  const Ran ran = RunAisp("up --port 0 --prefill 1 --decode 2 --devices cpu,tpu --log-level error");
  EXPECT_EQ(ran.code, 2);
  EXPECT_THAT(ran.output, HasSubstr("--devices"));
  EXPECT_THAT(ran.output, HasSubstr("got 'tpu'"));
}

// The second one is the decode worker's.
TEST(Commands, UpGivesItsWorkersDevicesInTurn) {
  const Ran ran =
      RunAisp("up --port 0 --prefill 1 --decode 2 --devices cpu,cuda:77 --log-level error");
  EXPECT_EQ(ran.code, 1);
  EXPECT_THAT(ran.output, HasSubstr("decode-0 ended while starting"));
}

TEST(Commands, AWorkerWhoseFingerprintDiffersIsRefusedWithBothValues) {
  Cluster cluster({});
  ASSERT_TRUE(cluster.AwaitReady());
  const std::string workers = cluster.router->Await("workers");
  const TempFile log("refused.log");
  Process odd({"serve", "--role=decode", "--worker-id=odd", "--kv-dtype=fp8",
               "--routers=" + workers, "--log-level=warning"},
              log.path());
  ASSERT_TRUE(Eventually([&] {
    const std::string text = log.Read();
    return text.find("fp8") != std::string::npos && text.find("bf16") != std::string::npos &&
           text.find("kv") != std::string::npos;
  }));
  EXPECT_EQ(Connect(odd.Await("admin")).Request("GET", "/ready")->status, 503);
}

}  // namespace
}  // namespace aisp::e2e
