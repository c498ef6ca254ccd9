#include "common/log.h"

#include <fcntl.h>
#include <poll.h>
#include <unistd.h>

#include <cmath>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "common/threads.h"

namespace aisp {
namespace {

using ::testing::EndsWith;
using ::testing::HasSubstr;
using ::testing::MatchesRegex;
using ::testing::Not;

constexpr Duration kLong = std::chrono::seconds(30);

// A pipe whose write end is the log; it is read only in Text().
class LogPipe {
 public:
  LogPipe() {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    read_fd_ = fds[0];
    write_fd_ = fds[1];
  }
  ~LogPipe() {
    CloseReader();
    close(write_fd_);
  }
  void CloseReader() {
    if (read_fd_ >= 0) close(read_fd_);
    read_fd_ = -1;
  }
  int fd() const { return write_fd_; }
  // Returns what was written and not yet read, without waiting for more.
  std::string Text() const {
    std::string text;
    char buffer[4096];
    for (;;) {
      pollfd entry{.fd = read_fd_, .events = POLLIN, .revents = 0};
      if (poll(&entry, 1, 0) != 1) return text;
      const ssize_t n = read(read_fd_, buffer, sizeof(buffer));
      if (n <= 0) return text;
      text.append(buffer, static_cast<size_t>(n));
    }
  }

 private:
  int read_fd_ = -1;
  int write_fd_ = -1;
};

std::string LogOnce(LogFormat format, const std::function<void()>& log,
                    LogLevel level = LogLevel::kInfo) {
  const LogPipe pipe;
  {
    const LogSession session({.level = level, .format = format, .fd = pipe.fd()});
    log();
  }
  return pipe.Text();
}

TEST(Log, WritesTextForPeople) {
  const std::string name = "with space";
  const std::string line = LogOnce(LogFormat::kText, [&] {
    LogWarning(
        "worker lost",
        {{"worker", "d0"}, {"name", name}, {"requests", 3}, {"ttft_ms", 1.25}, {"ready", false}});
  });
  EXPECT_THAT(
      line,
      MatchesRegex("[0-9]+-[0-9]+-[0-9]+T[0-9]+:[0-9]+:[0-9]+\\.[0-9]+Z W worker lost worker=d0 "
                   "name=\"with space\" requests=3 ttft_ms=1.25 ready=false\n"));
}

TEST(Log, WritesJsonForMachines) {
  const std::string line = LogOnce(LogFormat::kJson, [] {
    LogError("step failed",
             {{"why", "a \"quoted\"\nline\x01"}, {"step", 18446744073709551615ULL}, {"load", NAN}});
  });
  EXPECT_THAT(line, HasSubstr("\"level\":\"error\""));
  EXPECT_THAT(line, EndsWith("\"event\":\"step failed\",\"why\":\"a \\\"quoted\\\"\\nline\\u0001\","
                             "\"step\":18446744073709551615,\"load\":null}\n"));
}

std::string LogAs(LogFormat format, const std::function<void()>& log) {
  const LogPipe pipe;
  {
    const LogSession session(
        {.format = format, .fd = pipe.fd(), .identity = {.role = "decode", .id = "decode-0"}});
    log();
  }
  return pipe.Text();
}

TEST(Log, SaysWhoseLineItIsInTextAndJson) {
  const auto log = [] { LogInfo("worker lost", {{"worker", "d0"}}); };
  EXPECT_THAT(LogAs(LogFormat::kText, log),
              HasSubstr("Z I role=decode id=decode-0 worker lost worker=d0\n"));
  EXPECT_THAT(LogAs(LogFormat::kJson, log),
              HasSubstr(R"("role":"decode","id":"decode-0","event":"worker lost","worker":"d0"})"));
}

TEST(Log, AThreadOfAnotherRoleSaysItsOwn) {
  const std::string text = LogAs(LogFormat::kText, [] {
    Thread other("other", [] {
      SetThreadLogIdentity({"prefill", "with space"});
      LogInfo("theirs");
    });
    other.Join();
    LogInfo("ours");
  });
  EXPECT_THAT(text, HasSubstr("role=prefill id=\"with space\" theirs\n"));
  EXPECT_THAT(text, HasSubstr("role=decode id=decode-0 ours\n"));
}

TEST(Log, CannotBeForgedByAFieldsValue) {
  const std::string line = LogOnce(LogFormat::kText, [] {
    LogInfo("path", {{"path", "/x\nE fake=1"}});
  });
  EXPECT_THAT(line, HasSubstr("path=\"/x\\nE fake=1\""));
}

TEST(Log, ReplacesBytesThatAreNotUtf8) {
  const std::string line = LogOnce(LogFormat::kJson, [] { LogInfo("bytes", {{"b", "a\xFFz"}}); });
  EXPECT_THAT(line, HasSubstr("\"b\":\"a\xEF\xBF\xBDz\""));
}

TEST(Log, DropsLinesBelowItsLevel) {
  const std::string text = LogOnce(
      LogFormat::kText,
      [] {
        EXPECT_FALSE(LogEnabled(LogLevel::kInfo));
        LogInfo("quiet");
        LogError("loud");
      },
      LogLevel::kWarning);
  EXPECT_THAT(text, Not(HasSubstr("quiet")));
  EXPECT_THAT(text, HasSubstr("loud"));
  EXPECT_TRUE(LogEnabled(LogLevel::kInfo));  // the session's level ends with it
}

TEST(Log, SurvivesAFullDisk) {
  const int full = open("/dev/full", O_WRONLY | O_CLOEXEC);
  ASSERT_GE(full, 0);
  const uint64_t dropped = GetLogStats().lines_dropped;
  {
    const LogSession session({.fd = full});
    for (int i = 0; i < 3; ++i) LogInfo("into the void");
  }
  EXPECT_EQ(GetLogStats().lines_dropped, dropped + 3);
  close(full);
}

TEST(Log, SurvivesAReaderThatWentAway) {
  LogPipe pipe;
  const uint64_t dropped = GetLogStats().lines_dropped;
  {
    const LogSession session({.fd = pipe.fd()});
    pipe.CloseReader();
    LogInfo("nobody reads this");  // without protection, SIGPIPE ends the process here
  }
  EXPECT_EQ(GetLogStats().lines_dropped, dropped + 1);
}

TEST(Log, AStuckReaderBlocksNeitherLoggingNorTheEndOfTheSession) {
  const LogPipe pipe;
  const uint64_t before = GetLogStats().lines_written + GetLogStats().lines_dropped;
  const uint64_t dropped = GetLogStats().lines_dropped;
  constexpr int kLines = 2000;  // far more than a pipe holds
  const std::string filler(200, 'x');
  {
    const LogSession session({.queue_lines = 64, .fd = pipe.fd()});
    for (int i = 0; i < kLines; ++i) LogInfo("flood", {{"filler", filler}});
  }
  const LogStats stats = GetLogStats();
  EXPECT_EQ(stats.lines_written + stats.lines_dropped,
            before + kLines);  // every line is counted, as written or as dropped
  EXPECT_GT(stats.lines_dropped, dropped);
}

TEST(Log, KeepsLinesWholeWhenManyThreadsLog) {
  const LogPipe pipe;
  constexpr int kThreads = 4;
  constexpr int kLines = 50;
  {
    const LogSession session({.fd = pipe.fd()});
    std::vector<Thread> threads;
    for (int t = 0; t < kThreads; ++t) {
      threads.emplace_back("logger", [t] {
        for (int i = 0; i < kLines; ++i) LogInfo("tick", {{"thread", t}, {"i", i}});
      });
    }
  }
  const std::string text = pipe.Text();
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), kThreads * kLines);
  EXPECT_THAT(text, HasSubstr("tick thread=3 i=49\n"));
}

TEST(Log, FlushWaitsForWhatWasLogged) {
  const LogPipe pipe;
  const LogSession session({.fd = pipe.fd()});
  LogInfo("before the flush");
  FlushLog(kLong);
  EXPECT_THAT(pipe.Text(), HasSubstr("before the flush"));
}

TEST(LogThrottle, LetsOneLinePerPeriodThroughAndCountsTheRest) {
  const std::string text = LogOnce(LogFormat::kText, [] {
    LogThrottle throttle(FromMs(1000));
    ManualClock clock;
    for (int i = 0; i < 5; ++i)
      throttle.Log(clock.Now(), LogLevel::kWarning, "queue full", {{"i", i}});
    clock.Advance(FromMs(1000));
    throttle.Log(clock.Now(), LogLevel::kWarning, "queue full", {{"i", 5}});
  });
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 3);
  EXPECT_THAT(text, HasSubstr("queue full i=0\n"));
  EXPECT_THAT(text, HasSubstr("queue full i=5\n"));
  EXPECT_THAT(text, HasSubstr("lines suppressed before this event=\"queue full\" lines=4\n"));
}

}  // namespace
}  // namespace aisp
