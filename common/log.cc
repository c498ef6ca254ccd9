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
#include <spdlog/details/log_msg_buffer.h>
#include <spdlog/pattern_formatter.h>
#include <spdlog/sinks/base_sink.h>
#include <unistd.h>

#include "common/bounded_queue.h"
#include "common/check.h"
#include "common/strings.h"
#include "common/threads.h"

namespace aisp {
namespace {

using Buffer = fmt::memory_buffer;

// spdlog's pattern writes timestamp and level; the rest of the line is built here.
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

// The identity of the calling thread; an empty role means that of the process.
thread_local LogIdentity thread_identity;

void AppendIdentity(Buffer& out, LogFormat format, const LogIdentity& of_process) {
  const LogIdentity& who = thread_identity.role.empty() ? of_process : thread_identity;
  for (const auto& [key, value] :
       {std::pair<std::string_view, const std::string&>("role", who.role),
        std::pair<std::string_view, const std::string&>("id", who.id)}) {
    if (value.empty()) continue;
    if (format == LogFormat::kJson) {
      fmt::format_to(std::back_inserter(out), "\"{}\":", key);
      AppendQuoted(out, value);
      out.push_back(',');
    } else {
      fmt::format_to(std::back_inserter(out), "{}=", key);
      AppendTextValue(out, value);
      out.push_back(' ');
    }
  }
}

void AppendLine(Buffer& out, LogFormat format, const LogIdentity& of_process,
                std::string_view event, LogFields fields) {
  AppendIdentity(out, format, of_process);
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

// Blocks SIGPIPE during one write, so that a closed stderr gives EPIPE instead of killing us.
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

// Counts of lines given to the log and of lines written or dropped, over all sessions.
struct Progress {
  std::atomic<uint64_t> submitted = 0;
  std::atomic<uint64_t> written = 0;
  std::atomic<uint64_t> dropped = 0;
  std::mutex mutex;
  std::condition_variable line_done;

  void LineDone(bool was_written) {
    (was_written ? written : dropped).fetch_add(1);
    // Notified under the mutex, so that FlushLog cannot miss it between its check and its wait.
    { const std::lock_guard lock(mutex); }
    line_done.notify_all();
  }
};

// Writes whole lines to a file descriptor and drops those it does not accept. base_sink's mutex
// guards the members.
class FdSink final : public spdlog::sinks::base_sink<std::mutex> {
 public:
  FdSink(int fd, Progress& progress) : fd_(fd), progress_(progress) {}

 private:
  void sink_it_(const spdlog::details::log_msg& msg) override {
    spdlog::memory_buf_t line;
    if (torn_) line.push_back('\n');
    formatter_->format(msg, line);
    const SigpipeBlocked guard;
    progress_.LineDone(Write({line.data(), line.size()}));
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

  // Once a write has timed out, later lines do not wait at all.
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
  bool torn_ = false;  // the last line was cut off without a newline
};

std::shared_ptr<spdlog::sinks::sink> MakeSink(const LogOptions& options, Progress& progress) {
  auto sink = std::make_shared<FdSink>(options.fd, progress);
  sink->set_formatter(std::make_unique<spdlog::pattern_formatter>(
      options.format == LogFormat::kText ? kTextPattern : kJsonPattern,
      spdlog::pattern_time_type::utc));
  return sink;
}

// The thread that writes a session's lines, and the queue in front of it.
struct Writer {
  Writer(std::shared_ptr<spdlog::sinks::sink> sink_in, size_t queue_lines)
      : sink(std::move(sink_in)), queue(queue_lines), thread("aisp-log", [this] {
          while (const auto line = queue.Pop()) sink->log(*line);
        }) {}

  const std::shared_ptr<spdlog::sinks::sink> sink;
  BoundedQueue<spdlog::details::log_msg_buffer> queue;
  Thread thread;
};

// Where lines go at the moment.
struct Target {
  std::shared_ptr<spdlog::sinks::sink> sink;
  LogFormat format = LogFormat::kText;
  std::shared_ptr<const LogIdentity> identity = std::make_shared<LogIdentity>();
  std::shared_ptr<Writer>
      writer;  // null while no session is open: the logging thread writes by itself
};

// The mutex guards `current`; the level is outside it so that LogEnabled takes no lock.
struct LogState {
  LogState() {
    const LogOptions defaults;
    current.sink = MakeSink(defaults, progress);
    current.format = defaults.format;
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

Target CurrentTarget(LogState& state) {
  const std::lock_guard lock(state.mutex);
  return state.current;
}

}  // namespace

void SetThreadLogIdentity(LogIdentity identity) { thread_identity = std::move(identity); }

bool LogEnabled(LogLevel level) { return level >= State().level.load(std::memory_order_relaxed); }

void Log(LogLevel level, std::string_view event, LogFields fields) {
  if (!LogEnabled(level)) return;
  LogState& state = State();
  const Target target = CurrentTarget(state);
  Buffer line;
  AppendLine(line, target.format, *target.identity, event, fields);
  const spdlog::details::log_msg message("aisp", ToSpdlog(level), {line.data(), line.size()});
  state.progress.submitted.fetch_add(1);
  if (target.writer == nullptr) {
    target.sink->log(message);
  } else if (!target.writer->queue.TryPush(spdlog::details::log_msg_buffer(message))) {
    state.progress.LineDone(false);
  }
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
  const Progress& progress = State().progress;
  return LogStats{.lines_written = progress.written.load(),
                  .lines_dropped = progress.dropped.load()};
}

void FlushLog(Duration limit) {
  Progress& progress = State().progress;
  const uint64_t submitted = progress.submitted.load();
  std::unique_lock lock(progress.mutex);
  progress.line_done.wait_for(
      lock, limit, [&] { return progress.written.load() + progress.dropped.load() >= submitted; });
}

struct LogSession::Impl {
  Target before;
  LogLevel level_before = LogLevel::kInfo;
};

LogSession::LogSession(const LogOptions& options) : impl_(std::make_unique<Impl>()) {
  LogState& state = State();
  Target target{.sink = MakeSink(options, state.progress),
                .format = options.format,
                .identity = std::make_shared<LogIdentity>(options.identity),
                .writer = nullptr};
  target.writer = std::make_shared<Writer>(target.sink, options.queue_lines);
  impl_->level_before = state.level.exchange(options.level);
  const std::lock_guard lock(state.mutex);
  AISP_CHECK_MSG(state.current.writer == nullptr,
                 "a LogSession is open already; main() owns the only one");
  impl_->before = std::exchange(state.current, std::move(target));
}

LogSession::~LogSession() {
  LogState& state = State();
  Target ended;
  {
    const std::lock_guard lock(state.mutex);
    ended = std::exchange(state.current, std::move(impl_->before));
  }
  state.level.store(impl_->level_before);
  // A thread that still logs to the old target finds its queue closed, and its line is dropped.
  ended.writer->queue.Close();
  ended.writer->thread.Join();
}

}  // namespace aisp
