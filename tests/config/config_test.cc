#include "config/config.h"

#include <gmock/gmock.h>

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "config/command_line.h"
#include "tests/support/temp_files.h"

namespace aisp {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

Config Load(const std::string& yaml) {
  Config config;
  const Status status = LoadConfigText(yaml, "test.yaml", &config);
  EXPECT_TRUE(status) << status.error().message;
  return config;
}

std::string LoadError(const std::string& yaml) {
  Config config;
  const Status status = LoadConfigText(yaml, "test.yaml", &config);
  return status ? "" : status.error().message;
}

Result<CommandLine> Parse(std::vector<std::string> args, std::span<const ExtraFlag> extras = {}) {
  return ParseCommandLine(args, extras);
}

TEST(Config, EveryKindOfValueIsReadFromYaml) {
  const Config c = Load(
      "role: decode\nhttp: {port: 9000, max_body: 2MiB, idle_timeout: 1.5s}\n"
      "worker:\n  routers: [a:1, b:2]\n  transports: tcp,shm\nengine:\n  prefix_cache: false\n");
  EXPECT_EQ(c.role, "decode");
  EXPECT_EQ(c.http.port, 9000);
  EXPECT_EQ(c.http.max_body, 2 << 20);
  EXPECT_EQ(c.http.idle_timeout, std::chrono::milliseconds(1500));
  EXPECT_THAT(c.worker.routers, ::testing::ElementsAre("a:1", "b:2"));
  EXPECT_THAT(c.worker.transports, ::testing::ElementsAre("tcp", "shm"));
  EXPECT_FALSE(c.engine.prefix_cache);
}

TEST(Config, AnUnknownKeyIsRefusedWithFileAndLine) {
  EXPECT_THAT(LoadError("role: all\nhttp:\n  prot: 80\n"),
              HasSubstr("test.yaml:3: unknown key 'http.prot'"));
  EXPECT_THAT(LoadError("engin:\n  block_tokens: 16\n"),
              HasSubstr("test.yaml:1: unknown key 'engin'"));
}

TEST(Config, AnUnknownKeyNamesTheNearestSettingAndItsShortFlag) {
  EXPECT_THAT(LoadError("http:\n  prot: 80\n"), HasSubstr("did you mean http.port (--port)?"));
  // Users may remember the short flag's name, or the key in another section.
  EXPECT_THAT(LoadError("max-num-seqs: 8\n"), HasSubstr("engine.max_sequences (--max-num-seqs)"));
  EXPECT_THAT(LoadError("model:\n  block_tokens: 16\n"), HasSubstr("engine.block_tokens"));
  EXPECT_THAT(LoadError("zzzzzzzzzzzz: 1\n"), Not(HasSubstr("did you mean")));
}

TEST(Config, ATabIsNamedWithItsLine) {
  EXPECT_THAT(LoadError("role: all\nhttp:\n\tport: 80\n"),
              HasSubstr("test.yaml:3: this line is indented by a tab"));
}

TEST(Config, AnUnknownTransportIsRefusedByName) {
  EXPECT_THAT(LoadError("worker:\n  transports: [tcp, tcpp]\n"),
              HasSubstr("test.yaml:2: worker.transports (--transports) wants one of cuda_ipc, shm, "
                        "ucx, tcp, got 'tcpp'"));
  EXPECT_THAT(Parse({"--transports", "shm,tcpp"}).error().message, HasSubstr("got 'tcpp'"));
}

TEST(Config, ADeviceIsOneOfThoseThatThereAre) {
  for (const char* good : {"auto", "cpu", "cuda", "cuda:0", "cuda:15"}) {
    EXPECT_TRUE(Parse({"--device", good})) << good;
  }
  for (const char* bad : {"foo", "cuda:", "cuda:x", "cuda:-1", "cuda:99999", "gpu:0", "cpu:1"}) {
    const auto parsed = Parse({"--device", bad});
    ASSERT_FALSE(parsed) << bad;
    EXPECT_THAT(parsed.error().message, HasSubstr("wants one of auto, cpu, cuda, cuda:N, got '"));
  }
  EXPECT_FALSE(Parse({"--devices", "cuda:0,foo"}));
}

// Each is refused by name, with its value and the allowed ones; none overflows or is accepted.
TEST(Config, AbsurdValuesAreRefused) {
  const auto refused = [](const std::string& yaml, const std::string& name) {
    const std::string error = LoadError(yaml);
    EXPECT_THAT(error, HasSubstr(name)) << yaml;
    EXPECT_LT(error.size(), 600u) << yaml;
  };
  for (const char* time : {"-1s", "nan s", "nans", "infs", "1e300s", "9223372036854775807s",
                           "99999999999h", "1e400ms", "0x10s", "-0.0000001s"}) {
    refused(std::string("drain_timeout: ") + time + "\n", "drain_timeout");
  }
  for (const char* number : {"-1", "nan", "inf", "1e3", "99999999999999999999", "0x10", "1.5"}) {
    refused(std::string("http:\n  max_connections: ") + number + "\n", "http.max_connections");
  }
  for (const char* size : {"-1", "nanGiB", "1e300GiB", "16777217TiB", "99999999999999999999"}) {
    refused(std::string("http:\n  max_body: ") + size + "\n", "http.max_body");
  }
  refused("drain_timeout: " + std::string(1 << 20, '9') + "s\n", "drain_timeout");
  refused("role: " + std::string(1 << 20, 'x') + "\n", "role");
}

TEST(Config, ARepeatedKeyIsRefused) {
  EXPECT_THAT(LoadError("http:\n  port: 1\n  port: 2\n"),
              HasSubstr("test.yaml:3: key 'http.port' stands here twice"));
}

TEST(Config, WrongTypesAndRangesNameTheValueAndWhatIsAllowed) {
  EXPECT_THAT(LoadError("http:\n  port: many\n"),
              HasSubstr("test.yaml:2: http.port (--port) wants a whole number, got 'many'"));
  EXPECT_THAT(LoadError("http:\n  port: 70000\n"), HasSubstr("allowed: 0 to 65535"));
  EXPECT_THAT(LoadError("drain_timeout: 5\n"), HasSubstr("wants a time with a unit"));
  EXPECT_THAT(LoadError("role: king\n"), HasSubstr("one of all, split, router, prefill, decode"));
  EXPECT_THAT(LoadError("role: all\nhttp: 5\n"),
              HasSubstr("test.yaml:2: http is a section with keys below it, as http.address; got "
                        "'5'"));
  EXPECT_THAT(LoadError("role: {a: b}\n"), HasSubstr("role (--role) is one value"));
  EXPECT_THAT(LoadError("engine: {block_tokens: 48}\n"), HasSubstr("one of 0, 16, 32, 64, 128"));
  EXPECT_THAT(LoadError("http:\n  port:\n"), HasSubstr("test.yaml:2: http.port (--port) has no"));
  EXPECT_THAT(LoadError("http:\n  port: [1]\n"), HasSubstr("one value, not a list"));
  EXPECT_THAT(LoadError("a: [1\n"), HasSubstr("test.yaml:"));
}

TEST(Config, PrintedConfigLoadsToTheSameConfig) {
  Config changed;
  changed.http.port = 1234;
  changed.worker.routers = {"r1:1", "r2:2"};
  changed.engine.kv_memory = 77 << 20;
  changed.log.format = "json";
  const std::string printed = PrintConfig(changed);
  EXPECT_EQ(PrintConfig(Load(printed)), printed);
  EXPECT_THAT(printed, HasSubstr("port: 1234"));
}

TEST(Config, ApiKeysAreNeitherPrintedNorQuotedButReachTheChildren) {
  const Config c = Load("http: {api_keys: [\"team:sk-secret\", sk-other]}\n");
  EXPECT_THAT(c.http.api_keys, ::testing::ElementsAre("team:sk-secret", "sk-other"));
  for (const char* secret : {"sk-secret", "sk-other", "team:"})
    EXPECT_THAT(PrintConfig(c), Not(HasSubstr(secret)));
  EXPECT_THAT(PrintConfig(c), HasSubstr("2 not shown"));
  EXPECT_EQ(Load(PrintConfig(c, Secrets::kShown)).http.api_keys, c.http.api_keys);
  EXPECT_THAT(LoadError("http: {api_keys: \"sk-secret,,b\"}\n"), Not(HasSubstr("sk-secret")));
}

TEST(Config, TheSettingsPageIsUpToDate) {
  std::ifstream in(AISP_SOURCE_DIR "/docs/config.md");
  std::ostringstream page;
  page << in.rdbuf();
  EXPECT_TRUE(page.str() == SettingsAsMarkdown()) << "docs/config.md is old: run `make docs`";
}

TEST(Config, EverySettingHasItsOwnKeyAndFlagAndAHelpSentence) {
  Config config;
  std::set<std::string, std::less<>> names;
  for (const Setting& s : BindSettings(&config)) {
    EXPECT_TRUE(names.insert(s.key).second) << s.key;
    EXPECT_TRUE(s.flag.empty() || (s.flag.starts_with("--") && names.emplace(s.flag).second))
        << s.flag;
    EXPECT_TRUE(s.help.ends_with(".")) << s.key;
    EXPECT_LE(s.min, s.max) << s.key;
    // The default that is shown is an allowed value.
    if (!std::holds_alternative<std::string*>(s.field)) {
      std::string shown = s.Show();
      std::erase_if(shown, [](char c) { return c == '[' || c == ']' || c == '"'; });
      const Status set = SetFromText(s, shown, s.key);
      EXPECT_TRUE(set) << set.error().message;
    }
  }
}

TEST(Config, EveryShippedExampleLoads) {
  int seen = 0;
  for (const auto& entry : std::filesystem::directory_iterator(AISP_SOURCE_DIR "/config")) {
    if (entry.path().extension() != ".yaml") continue;
    Config config;
    const Status status = LoadConfigFile(entry.path(), &config);
    EXPECT_TRUE(status) << status.error().message;
    ++seen;
  }
  EXPECT_GE(seen, 4);
}

TEST(CommandLine, FlagsWinOverTheFileAndTheFileOverDefaults) {
  const TempFile file("flags_win.yaml", "http:\n  port: 1111\n  address: 0.0.0.0\n");
  const auto parsed = Parse({"--port", "2222", "--config", file.path()});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->config.http.port, 2222);
  EXPECT_EQ(parsed->config.http.address, "0.0.0.0");
  EXPECT_EQ(parsed->config.engine.max_waiting, 1024);
}

TEST(CommandLine, AllSpellingsOfAFlagAreUnderstood) {
  const auto parsed = Parse({"--port=1", "--engine.block_tokens", "32", "--no-prefix-cache",
                             "--demo", "word", "--", "--port"});
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->config.http.port, 1);
  EXPECT_EQ(parsed->config.engine.block_tokens, 32);
  EXPECT_FALSE(parsed->config.engine.prefix_cache);
  EXPECT_TRUE(parsed->config.up.demo);
  EXPECT_THAT(parsed->positional, ::testing::ElementsAre("word", "--port"));
}

TEST(CommandLine, EverySettingIsAFlagByItsKeyAndHelpListsTheShortOneBesideIt) {
  Config defaults;
  constexpr std::string_view kAll[] = {""};
  const std::string help = HelpForSettings(kAll);
  for (const Setting& s : BindSettings(&defaults)) {
    std::string text = s.Show();
    std::erase_if(text, [](char c) { return c == '[' || c == ']' || c == '"'; });
    const auto parsed = Parse({fmt::format("{}={}", s.LongFlag(), text)});
    EXPECT_TRUE(parsed) << parsed.error().message;
    EXPECT_THAT(help, HasSubstr(s.LongFlag()));
    EXPECT_THAT(help, HasSubstr(std::string(s.flag)));
  }
  EXPECT_THAT(PrintConfig(defaults), HasSubstr("block_tokens: 0  # --block-size: "));
  EXPECT_FALSE(Parse({"--no-engine.prefix_cache"})->config.engine.prefix_cache);
}

TEST(CommandLine, AnUnknownFlagNamesTheNearestKnownOne) {
  const auto parsed = Parse({"--prot", "80"});
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error().message, HasSubstr("did you mean --http.port (--port)?"));
  EXPECT_THAT(Parse({"--engine.block_token", "16"}).error().message,
              HasSubstr("did you mean --engine.block_tokens (--block-size)?"));
  EXPECT_THAT(Parse({"--block_tokens", "16"}).error().message,
              HasSubstr("did you mean --engine.block_tokens (--block-size)?"));
}

TEST(CommandLine, AnUnknownFlagThatIsLikeNoneNamesWhereTheyAre) {
  EXPECT_THAT(Parse({"--modle", "x"}).error().message,
              HasSubstr("'--modle'; did you mean --model.path (--model)?"));
  EXPECT_THAT(Parse({"--nosuch", "x"}).error().message,
              HasSubstr("'--nosuch'; --help lists the known ones"));
  EXPECT_THAT(Parse({"--rol", "x"}).error().message, HasSubstr("did you mean --role?"));
}

TEST(CommandLine, AMissingValueAndAMissingFileAreErrors) {
  EXPECT_THAT(Parse({"--port"}).error().message, HasSubstr("--port wants a value"));
  EXPECT_THAT(Parse({"--config", "/nonexistent.yaml"}).error().message,
              HasSubstr("/nonexistent.yaml"));
}

TEST(CommandLine, ADirectoryIsNoConfigFile) {
  EXPECT_THAT(Parse({"--config", AISP_SOURCE_DIR}).error().message,
              HasSubstr("is a directory; name the YAML file in it"));
}

TEST(CommandLine, ExtraFlagsOfACommandAreKeptApart) {
  const ExtraFlag extras[] = {{"--max-tokens", "N", "help"}, {"--quiet", "", "help"}};
  const auto parsed = Parse({"--max-tokens", "5", "--quiet", "a prompt"}, extras);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->Extra("max-tokens"), "5");
  EXPECT_TRUE(parsed->HasExtra("quiet"));
  EXPECT_THAT(parsed->positional, ::testing::ElementsAre("a prompt"));
  EXPECT_EQ(*parsed->ExtraInt("max-tokens", 1, 1, 10), 5);
  EXPECT_EQ(*parsed->ExtraInt("seed", 7, 1, 10), 7);
  EXPECT_THAT(parsed->ExtraInt("max-tokens", 1, 1, 4).error().message,
              HasSubstr("--max-tokens 5 is out of range; allowed: 1 to 4"));
  const auto wrong = Parse({"--max-tokens", "abc"}, extras);
  EXPECT_THAT(wrong->ExtraInt("max-tokens", 1, 1, 4).error().message,
              HasSubstr("--max-tokens wants a whole number, got 'abc'"));
}

}  // namespace
}  // namespace aisp
