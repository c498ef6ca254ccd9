#include "common/log.h"

#include <atomic>
#include <cerrno>
#include <cmath>
#include <condition_variable>
#include <csignal>
#include <ctime>
#include <mutex>
#include <utility>

#include <fmt/format.h>
#include <limits.h>
#include <poll.h>
#include <spdlog/async.h>
#include <spdlog/async_logger.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include "common/check.h"
#include "common/strings.h"

namespace aisp {
namespace {

using Buffer = fmt::memory_buffer;

// Timestamp and level come from spdlog's pattern, the rest of the line is built here.
constexpr const char* kTextPattern = "%Y-%m-%dT%H:%M:%S.%eZ %L %v";
constexpr const char* kJsonPattern =
    R"({"ts":"%Y-%m-%dT%H:%M:%S.%fZ","level":"%l","thread":%t,%v})";
constexpr int kStuckAfterMs = 200;

spdlog::level::level_enum ToSpdlog(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return spdlog::level::debug;
    case LogLevel::kInfo:
      return spdlog::level::info;
    case LogLevel::kWarning:
      return spdlog::level::warn;
    case LogLevel::kError:
      return spdlog::level::err;
  }
  return spdlog::level::err;
}

void Append(Buffer& out, std::string_view text) {
  out.append(text.data(), text.data() + text.size());
}

// A JSON string with its quotes; a byte that is not part of well-formed UTF-8 becomes U+FFFD.
void AppendQuoted(Buffer& out, std::string_view text) {
  out.push_back('"');
  while (!text.empty()) {
    std::string_view valid = text.substr(0, ValidUtf8Prefix(text));
    for (const char c : valid) {
      switch (c) {
        case '"':
          Append(out, "\\\"");
          break;
        case '\\':
          Append(out, "\\\\");
          break;
        case '\n':
          Append(out, "\\n");
          break;
        default:
          if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
            fmt::format_to(std::back_inserter(out), "\\u{:04x}", static_cast<unsigned>(c));
          } else {
            out.push_back(c);
          }
      }
    }
    text.remove_prefix(valid.size());
    if (!text.empty()) {
      Append(out, "\xEF\xBF\xBD");
      text.remove_prefix(1);
    }
  }
  out.push_back('"');
}

bool NeedsQuotes(std::string_view text) {
  if (text.empty() || !IsValidUtf8(text)) return true;
  for (const char c : text) {
    if (static_cast<unsigned char>(c) <= 0x20 || c == 0x7F || c == '"' || c == '=' || c == '\\')
      return true;
  }
  return false;
}

void AppendTextValue(Buffer& out, const LogValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value.get())) {
    if (NeedsQuotes(*text)) {
      AppendQuoted(out, *text);
    } else {
      Append(out, *text);
    }
  } else if (const auto* number = std::get_if<double>(&value.get())) {
    fmt::format_to(std::back_inserter(out), "{:.6g}", *number);
  } else {
    std::visit([&](const auto& v) { fmt::format_to(std::back_inserter(out), "{}", v); },
               value.get());
  }
}

void AppendJsonValue(Buffer& out, const LogValue& value) {
  if (const auto* text = std::get_if<std::string_view>(&value.get())) {
    AppendQuoted(out, *text);
  } else if (const auto* number = std::get_if<double>(&value.get());
             number && !std::isfinite(*number)) {
    Append(out, "null");
  } else {
    std::visit([&](const auto& v) { fmt::format_to(std::back_inserter(out), "{}", v); },
               value.get());
  }
}

void AppendLine(Buffer& out, LogFormat format, std::string_view event, LogFields fields) {
  if (format == LogFormat::kText) {
    Append(out, event);
    for (const LogField& field : fields) {
      fmt::format_to(std::back_inserter(out), " {}=", field.key);
      AppendTextValue(out, field.value);
    }
    return;
  }
  Append(out, "\"event\":");
  AppendQuoted(out, event);
  for (const LogField& field : fields) {
    fmt::format_to(std::back_inserter(out), ",\"{}\":", field.key);
    AppendJsonValue(out, field.value);
  }
}

// For one write: a reader of our stderr that went away must be an EPIPE, not the end of the process.
class SigpipeBlocked {
 public:
  SigpipeBlocked() {
    sigset_t pending;
    sigpending(&pending);
    was_pending_ = sigismember(&pending, SIGPIPE) == 1;
    sigemptyset(&set_);
    sigaddset(&set_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &set_, &before_);
  }
  SigpipeBlocked(const SigpipeBlocked&) = delete;
  SigpipeBlocked& operator=(const SigpipeBlocked&) = delete;
  ~SigpipeBlocked() {
    if (!was_pending_) {
      const timespec now{};
      while (sigtimedwait(&set_, nullptr, &now) == -1 && errno == EINTR) {
      }
    }
    pthread_sigmask(SIG_SETMASK, &before_, nullptr);
  }

 private:
  sigset_t set_;
  sigset_t before_;
  bool was_pending_ = false;
};

// Lines handed to the logger and lines that are done with, over all sessions.
struct Progress {
  std::atomic<uint64_t> submitted = 0;
  std::atomic<uint64_t> written = 0;
  std::atomic<uint64_t> refused = 0;  // by the file descriptor
  std::atomic<uint64_t> overrun = 0;  // by the queues of sessions that have ended
  std::mutex mutex;
  std::condition_variable line_done;
};

// Writes whole lines to a file descriptor, dropping those that it does not take. base_sink's mutex guards the members.
class FdSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FdSink(int fd, Progress& progress) : fd_(fd), progress_(progress) {}

 private:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    spdlog::memory_buf_t line;
    if (torn_) line.push_back('\n');
    formatter_->format(msg, line);
    const SigpipeBlocked guard;
    const bool written = Write({line.data(), line.size()});
    (written ? progress_.written : progress_.refused).fetch_add(1);
    { const std::lock_guard lock(progress_.mutex); }
    progress_.line_done.notify_all();
  }
  void flush_() override {}

  bool Write(std::string_view rest) {
    bool first = true;
    while (!rest.empty()) {
      if (!WaitWritable()) break;
      // A pipe that polls writable takes PIPE_BUF bytes without blocking.
      const ssize_t n = write(fd_, rest.data(), std::min<size_t>(rest.size(), PIPE_BUF));
      if (n < 0 && errno == EINTR) continue;
      if (n <= 0) break;
      first = false;
      rest.remove_prefix(static_cast<size_t>(n));
    }
    if (rest.empty())
      torn_ = false;
    else if (!first)
      torn_ = true;
    return rest.empty();
  }

  // Once the reader has kept us waiting, later lines do not wait for it at all.
  bool WaitWritable() {
    pollfd entry{.fd = fd_, .events = POLLOUT, .revents = 0};
    int ready = 0;
    do {
      ready = poll(&entry, 1, stuck_ ? 0 : kStuckAfterMs);
    } while (ready < 0 && errno == EINTR);
    stuck_ = ready == 0;
    return ready > 0;
  }

  const int fd_;
  Progress& progress_;
  bool stuck_ = false;
  bool torn_ = false;  // the last line on the descriptor has no end
};

std::shared_ptr<spdlog::sinks::sink> MakeSink(const LogOptions& options, Progress& progress) {
  auto sink = std::make_shared<FdSink>(options.fd, progress);
  sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      options.format == LogFormat::kText ? kTextPattern : kJsonPattern,
      spdlog::pattern_time_type::utc));
  return sink;
}

// Where lines go now. The mutex guards `current`; level stands outside, for LogEnabled.
struct LogState {
  struct Target {
    std::shared_ptr<spdlog::logger> logger;
    LogFormat format = LogFormat::kText;
    std::shared_ptr<spdlog::details::thread_pool> pool;  // null while no session is open
  };

  LogState() { current = MakeSynchronous(); }
  Target MakeSynchronous() {
    const LogOptions defaults;
    auto logger = std::make_shared<spdlog::logger>("aisp", MakeSink(defaults, progress));
    logger->set_level(spdlog::level::trace);
    return Target{.logger = std::move(logger), .format = defaults.format, .pool = nullptr};
  }

  Progress progress;
  std::atomic<LogLevel> level = LogOptions().level;
  std::mutex mutex;
  Target current;
};

// The one log of the process. Never destroyed: threads may log while the process ends.
LogState& State() {
  static auto* state = new LogState;
  return *state;
}

LogState::Target CurrentTarget(LogState& state) {
  const std::lock_guard lock(state.mutex);
  return state.current;
}

uint64_t Overruns(LogState& state, const LogState::Target& target) {
  return state.progress.overrun.load() + (target.pool ? target.pool->overrun_counter() : 0);
}

}  // namespace

bool LogEnabled(LogLevel level) { return level >= State().level.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (!LogEnabled(level)) return;
  LogState& state = State();
  const LogState::Target target = CurrentTarget(state);
  Buffer line;
  AppendLine(line, target.format, event, fields);
  state.progress.submitted.fetch_add(1);
  target.logger->log(ToSpdlog(level), spdlog::string_view_t(line.data(), line.size()));
}

void LogThrottle::Log(Instant now, LogLevel level, std::string_view event, LogFields fields) {
  if (now < next_) {
    ++suppressed_;
    return;
  }
  next_ = now + period_;
  aisp::Log(level, event, fields);
  if (suppressed_ > 0) {
    aisp::Log(level, "lines suppressed before this", {{"event", event}, {"lines", suppressed_}});
    suppressed_ = 0;
  }
}

LogStats GetLogStats() {
  LogState& state = State();
  const LogState::Target target = CurrentTarget(state);
  return LogStats{.lines_written = state.progress.written.load(),
                  .lines_dropped = state.progress.refused.load() + Overruns(state, target)};
}

void FlushLog(Duration limit) {
  LogState& state = State();
  const LogState::Target target = CurrentTarget(state);
  const uint64_t submitted = state.progress.submitted.load();
  std::unique_lock lock(state.progress.mutex);
  state.progress.line_done.wait_for(lock, limit, [&] {
    return state.progress.written.load() + state.progress.refused.load() +
               Overruns(state, target) >=
           submitted;
  });
}

struct LogSession::Impl {
  LogState::Target before;
  LogLevel level_before;
};

LogSession::LogSession(const LogOptions& options) : impl_(std::make_unique<Impl>()) {
  LogState& state = State();
  LogState::Target target;
  target.format = options.format;
  target.pool = std::make_shared<spdlog::details::thread_pool>(options.queue_lines, 1);
  target.logger =
      std::make_shared<spdlog::async_logger>("aisp", MakeSink(options, state.progress), target.pool,
                                             spdlog::async_overflow_policy::overrun_oldest);
  target.logger->set_level(spdlog::level::trace);
  impl_->level_before = state.level.exchange(options.level);
  const std::lock_guard lock(state.mutex);
  AISP_CHECK_MSG(state.current.pool == nullptr,
                 "a LogSession is open already; main() owns the only one");
  impl_->before = std::exchange(state.current, std::move(target));
}

LogSession::~LogSession() {
  LogState& state = State();
  LogState::Target ended;
  {
    const std::lock_guard lock(state.mutex);
    ended = std::exchange(state.current, std::move(impl_->before));
  }
  state.level.store(impl_->level_before);
  state.progress.overrun.fetch_add(ended.pool->overrun_counter());
  // Another thread may hold the target for the line that it is writing; the last holder joins the writer's thread.
  ended.logger.reset();
  ended.pool.reset();
}

}  // namespace aisp
