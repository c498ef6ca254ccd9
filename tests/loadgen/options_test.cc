#include "loadgen/options.h"

#include <gmock/gmock.h>

#include <cmath>

namespace aisp::loadgen {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Pair;

Result<Options> Parse(const std::vector<std::string>& args) { return ParseOptions(args); }

std::string ErrorOf(const std::vector<std::string>& args) {
  const auto parsed = ParseOptions(args);
  return parsed ? "no error" : parsed.error().message;
}

TEST(Options, ReadsTheFlagsOfVllmBenchServe) {
  const auto o = Parse({"--base-url",
                        "http://10.0.0.1:8000",
                        "--endpoint=/v1/chat/completions",
                        "--model",
                        "m",
                        "--num-prompts",
                        "50",
                        "--request-rate",
                        "2.5",
                        "--burstiness",
                        "0.5",
                        "--max-concurrency",
                        "16",
                        "--random-input-len",
                        "300",
                        "--random-output-len",
                        "30",
                        "--ignore-eos",
                        "--percentile-metrics",
                        "ttft,tpot",
                        "--metric-percentiles",
                        "50,90,99.9",
                        "--goodput",
                        "ttft:500",
                        "tpot:50",
                        "--save-result",
                        "--seed",
                        "3",
                        "--header",
                        "x-a=b",
                        "--header",
                        "x-c: d"});
  ASSERT_TRUE(o) << o.error().message;
  EXPECT_EQ(o->kind(), BackendKind::kChat);
  EXPECT_EQ(o->input_len, 300);
  EXPECT_EQ(o->output_len, 30);
  EXPECT_EQ(o->request_rate, 2.5);
  EXPECT_THAT(o->percentile_metrics, ElementsAre("ttft", "tpot"));
  EXPECT_THAT(o->percentiles, ElementsAre(50, 90, 99.9));
  EXPECT_EQ(o->goodput.ttft_ms, 500);
  EXPECT_EQ(o->goodput.tpot_ms, 50);
  EXPECT_FALSE(o->goodput.e2el_ms);
  EXPECT_THAT(o->headers, ElementsAre(Pair("x-a", "b"), Pair("x-c", "d")));
  EXPECT_TRUE(std::isinf(*Parse({"--request-rate", "inf"})->request_rate));
  EXPECT_EQ(Parse({"--top-k", "-1"})->top_k, -1);
}

TEST(Options, ErrorsNameTheFlagTheValueAndWhatIsAccepted) {
  EXPECT_THAT(ErrorOf({"--num-prompst", "5"}),
              AllOf(HasSubstr("--num-prompst"), HasSubstr("did you mean --num-prompts?")));
  EXPECT_THAT(ErrorOf({"--request-rate", "fast"}), AllOf(HasSubstr("fast"), HasSubstr("inf")));
  EXPECT_THAT(ErrorOf({"--request-rate", "-1"}), HasSubstr("'-1'"));
  EXPECT_THAT(ErrorOf({"--dataset-name", "sonnet"}),
              AllOf(HasSubstr("sonnet"), HasSubstr("prefix_repetition")));
  EXPECT_THAT(ErrorOf({"--num-prompts", "0"}), HasSubstr("from 1 to"));
  EXPECT_THAT(ErrorOf({"--num-prompts"}), HasSubstr("wants a value"));
  EXPECT_THAT(ErrorOf({"--ignore-eos=yes"}), HasSubstr("takes no value"));
  EXPECT_THAT(ErrorOf({"stray"}), HasSubstr("'stray'"));
  EXPECT_THAT(ErrorOf({"--cancel-rate", "1.5"}), HasSubstr("0 to 1"));
  EXPECT_THAT(ErrorOf({"--extra-body", "[1]"}), HasSubstr("JSON object"));
  EXPECT_THAT(ErrorOf({"--metric-percentiles", "50,101"}), HasSubstr("'101'"));
  EXPECT_THAT(ErrorOf({"--percentile-metrics", "ttft,latency"}), HasSubstr("'latency'"));
}

TEST(Options, WhatDoesNotGoTogetherIsRefused) {
  EXPECT_THAT(ErrorOf({"--dataset-name", "mooncake"}), HasSubstr("--dataset-path"));
  EXPECT_THAT(ErrorOf({"--dataset-path", "f"}), HasSubstr("--dataset-path"));
  EXPECT_THAT(ErrorOf({"--ramp-up-strategy", "linear"}), HasSubstr("--ramp-up-start-rps"));
  EXPECT_THAT(ErrorOf({"--backend", "aisp-grpc", "--base-url", "http://h:1"}),
              HasSubstr("--grpc-address"));
  EXPECT_EQ(Parse({"--backend", "aisp-grpc", "--port", "90"})->grpc_address, "127.0.0.1:91");
  EXPECT_THAT(ErrorOf({"--backend", "openai", "--endpoint", "/v1/chat/completions"}),
              HasSubstr("openai-chat"));
  EXPECT_THAT(ErrorOf({"--ca", "ca.pem"}), HasSubstr("https://HOST:PORT"));
  EXPECT_THAT(ErrorOf({"--base-url", "https://h:1", "--cert", "c"}), HasSubstr("--key"));
  EXPECT_THAT(ErrorOf({"--base-url", "https://h:1", "--ca", "c", "--insecure"}),
              HasSubstr("leave one out"));
  EXPECT_THAT(ErrorOf({"--cancel-delay", "1"}), HasSubstr("--cancel-rate"));
}

TEST(Options, ManyRunsAreOneKindAtATime) {
  EXPECT_THAT(ErrorOf({"--sweep"}), HasSubstr("--goodput ttft:500"));
  EXPECT_THAT(ErrorOf({"--sweep-rates", "1,2", "--request-rate", "3"}), HasSubstr("sets the rate"));
  EXPECT_THAT(ErrorOf({"--sweep-rates", "1,0"}), HasSubstr("'0'"));
  EXPECT_THAT(ErrorOf({"--sweep-rates", "1", "--ab", "http://h:1"}), HasSubstr("one at a time"));
  EXPECT_THAT(ErrorOf({"--sweep-rates", "1", "--compare", "f"}), HasSubstr("of one run"));
  EXPECT_THAT(ErrorOf({"--ab", "http://h:1", "--ab-gpus", "4,8"}),
              AllOf(HasSubstr("A has 4 GPUs and B 8"), HasSubstr("--ab-unequal")));
  EXPECT_THAT(ErrorOf({"--ab", "http://h:1", "--ab-gpus", "4"}), HasSubstr("two numbers"));
  EXPECT_EQ(ErrorOf({"--ab", "http://h:1", "--ab-gpus", "4,8", "--ab-unequal"}), "no error");
  EXPECT_THAT(Parse({"--sweep-rates", "1,2,4"})->sweep_rates, ElementsAre(1, 2, 4));
  EXPECT_TRUE(Parse({"--sweep", "--goodput", "ttft:500", "--slo-attainment", "0.99"}));
}

TEST(Options, TurnsGoWithWhatHasTurns) {
  EXPECT_THAT(ErrorOf({"--turns", "3", "--dataset-name", "prefix_repetition"}),
              HasSubstr("--turns"));
  EXPECT_THAT(ErrorOf({"--num-conversations", "3"}), HasSubstr("--turns N"));
  EXPECT_THAT(ErrorOf({"--turns", "2", "--num-conversations", "3", "--num-prompts", "6"}),
              HasSubstr("leave one of them out"));
  EXPECT_THAT(ErrorOf({"--fixed-schedule"}), HasSubstr("a trace with times"));
  EXPECT_EQ(Parse({"--turns", "8", "--num-conversations", "64"})->num_conversations, 64);
}

TEST(Options, ASeedThatWasGivenIsKnownAsSuch) {
  EXPECT_TRUE(Parse({"--seed", "0"})->seed_given);
  EXPECT_FALSE(Parse({})->seed_given);
}

TEST(Options, EveryFlagStandsInTheHelp) {
  const std::string help = HelpText();
  for (const char* flag : {"--base-url", "--goodput", "--cancel-rate", "--compare", "--time-scale",
                           "--ramp-up-strategy", "--retries", "--save-detailed"}) {
    EXPECT_THAT(help, HasSubstr(flag));
  }
  EXPECT_TRUE(Parse({"--help"})->help);
}

TEST(Goodput, IsReadOrRefusedWithAnExample) {
  const auto read = ParseGoodput({"ttft:500", "e2el:4000.5"});
  ASSERT_TRUE(read);
  EXPECT_EQ(read->ttft_ms, 500);
  EXPECT_EQ(read->e2el_ms, 4000.5);
  EXPECT_FALSE(read->tpot_ms);
  for (const char* bad : {"ttft", "ttft:", "ttft:-5", "ttft:x", "itl:5", ":5"}) {
    const auto refused = ParseGoodput({bad});
    ASSERT_FALSE(refused) << bad;
  }
  EXPECT_THAT(ParseGoodput({"itl:5"}).error().message,
              AllOf(HasSubstr("itl:5"), HasSubstr("ttft, tpot, e2el")));
}

TEST(Url, IsSplitIntoHostPortAndPrefix) {
  EXPECT_EQ(ParseUrl("http://h:81")->host, "h");
  EXPECT_EQ(ParseUrl("http://h:81")->port, 81);
  EXPECT_TRUE(ParseUrl("https://h")->tls);
  EXPECT_EQ(ParseUrl("https://h")->port, 443);
  EXPECT_EQ(ParseUrl("https://[::1]:8443/x")->ToString(), "https://[::1]:8443/x");
  EXPECT_EQ(ParseUrl("http://h")->port, 80);
  EXPECT_EQ(ParseUrl("http://h:81/a/b/")->prefix, "/a/b");
  EXPECT_EQ(ParseUrl("http://[::1]:81")->host, "::1");
  for (const char* bad : {"h:81", "ftp://h", "http://", "http://h:0", "http://h:x"}) {
    EXPECT_FALSE(ParseUrl(bad)) << bad;
  }
}

}  // namespace
}  // namespace aisp::loadgen
