#include "config/config.h"

#include <gmock/gmock.h>

#include <filesystem>
#include <set>

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
  EXPECT_EQ(c.http.max_body.bytes, 2 << 20);
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

TEST(Config, ARepeatedKeyIsRefused) {
  EXPECT_THAT(LoadError("http:\n  port: 1\n  port: 2\n"),
              HasSubstr("test.yaml:3: key 'http.port' stands here twice"));
}

TEST(Config, WrongTypesAndRangesNameTheValueAndWhatIsAllowed) {
  EXPECT_THAT(LoadError("http:\n  port: many\n"),
              HasSubstr("test.yaml:2: http.port wants a whole number, got 'many'"));
  EXPECT_THAT(LoadError("http:\n  port: 70000\n"), HasSubstr("allowed: 0 to 65535"));
  EXPECT_THAT(LoadError("drain_timeout: 5\n"), HasSubstr("wants a duration with a unit"));
  EXPECT_THAT(LoadError("role: king\n"), HasSubstr("one of all, split, router, prefill, decode"));
  EXPECT_THAT(LoadError("http: 3\n"), HasSubstr("unknown key 'http'"));
  EXPECT_THAT(LoadError("http:\n  port: [1]\n"), HasSubstr("one value, not a list"));
  EXPECT_THAT(LoadError("a: [1\n"), HasSubstr("test.yaml:"));
}

TEST(Config, PrintedConfigLoadsToTheSameConfig) {
  Config changed;
  changed.http.port = 1234;
  changed.worker.routers = {"r1:1", "r2:2"};
  changed.engine.kv_memory.bytes = 77 << 20;
  changed.log.format = "json";
  const std::string printed = PrintConfig(changed);
  EXPECT_EQ(PrintConfig(Load(printed)), printed);
  EXPECT_THAT(printed, HasSubstr("port: 1234"));
}

TEST(Config, ApiKeysAreNeitherPrintedNorQuotedButReachTheChildren) {
  const Config c = Load("http: {api_keys: [\"team:sk-secret\", sk-other]}\n");
  EXPECT_THAT(c.http.api_keys, ::testing::ElementsAre("team:sk-secret", "sk-other"));
  EXPECT_THAT(PrintConfig(c), Not(HasSubstr("sk-")));
  EXPECT_THAT(PrintConfig(c), HasSubstr("2 not shown"));
  EXPECT_EQ(Load(PrintConfig(c, Secrets::kShown)).http.api_keys, c.http.api_keys);
  EXPECT_THAT(LoadError("http: {api_keys: \"sk-secret,,b\"}\n"), Not(HasSubstr("sk-secret")));
}

TEST(Config, EverySettingHasItsOwnKeyAndFlagAndAHelpSentence) {
  Config config;
  std::set<std::string_view> names;
  for (const Setting& s : BindSettings(&config)) {
    EXPECT_TRUE(names.insert(s.key).second) << s.key;
    if (!s.flag.empty()) {
      EXPECT_TRUE(names.insert(s.flag).second) << s.flag;
    }
    EXPECT_TRUE(s.help.ends_with(".")) << s.key;
    EXPECT_LE(s.min, s.max) << s.key;
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
  EXPECT_EQ(parsed->config.engine.block_tokens, 16);
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

TEST(CommandLine, AnUnknownFlagNamesTheNearestKnownOne) {
  const auto parsed = Parse({"--prot", "80"});
  ASSERT_FALSE(parsed);
  EXPECT_THAT(parsed.error().message, HasSubstr("did you mean --port?"));
}

TEST(CommandLine, AMissingValueAndAMissingFileAreErrors) {
  EXPECT_THAT(Parse({"--port"}).error().message, HasSubstr("--port wants a value"));
  EXPECT_THAT(Parse({"--config", "/nonexistent.yaml"}).error().message,
              HasSubstr("/nonexistent.yaml"));
}

TEST(CommandLine, ExtraFlagsOfACommandAreKeptApart) {
  const ExtraFlag extras[] = {{"--max-tokens", "N", "help"}, {"--quiet", "", "help"}};
  const auto parsed = Parse({"--max-tokens", "5", "--quiet", "a prompt"}, extras);
  ASSERT_TRUE(parsed) << parsed.error().message;
  EXPECT_EQ(parsed->Extra("max-tokens"), "5");
  EXPECT_TRUE(parsed->HasExtra("quiet"));
  EXPECT_THAT(parsed->positional, ::testing::ElementsAre("a prompt"));
}

}  // namespace
}  // namespace aisp
