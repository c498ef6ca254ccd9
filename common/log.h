// The process's log: one line per event on stderr, as text for people or JSON for machines.
//
// LogInfo("request finished", {{"request", id}, {"tokens", n}, {"ttft_ms", ttft}});
//
// The event is a constant phrase and everything that varies is a field, so that events can be
// counted and searched. Any thread may log. There is one log because there is one stderr; main()
// configures it by owning a LogSession. Without one (tests, tools), lines of level info and above
// are written as text before the call returns.
//
// Logging never fails and never blocks a serving thread: a LogSession writes from a bounded queue
// on its own thread. What cannot be written (stderr closed, disk full, a pipe whose reader sleeps)
// is dropped and counted in LogStats.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>
#include <variant>

#include "common/clock.h"

namespace aisp {

enum class LogLevel { kDebug = 0, kInfo = 1, kWarning = 2, kError = 3 };
enum class LogFormat { kText, kJson };

// The process that a line belongs to: the first two fields of every line, so that several processes
// can share one terminal.
struct LogIdentity {
  std::string role;  // "router", "prefill", "decode", "supervisor"; "": omitted
  std::string id;    // "decode-0"
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  // Capacity of the queue; lines beyond it are dropped.
  size_t queue_lines = 8192;
  // The descriptor to write to; not owned.
  int fd = 2;
  // Identity of this process, for threads that have not set their own.
  LogIdentity identity = {};
};

// Makes this thread log as `identity` until it ends, for a worker that shares its process with
// others.
void SetThreadLogIdentity(LogIdentity identity);

// A field's value. Strings are not copied and must live until the call returns.
class LogValue {
 public:
  // Implicit, so that {{"key", value}} works. NOLINTBEGIN(google-explicit-constructor)
  template <typename T>
  requires std::is_arithmetic_v<T> LogValue(T value) {
    if constexpr (std::is_same_v<T, bool>) {
      value_ = value;
    } else if constexpr (std::is_floating_point_v<T>) {
      value_ = static_cast<double>(value);
    } else if constexpr (std::is_signed_v<T>) {
      value_ = static_cast<int64_t>(value);
    } else {
      value_ = static_cast<uint64_t>(value);
    }
  }
  LogValue(std::string_view value) : value_(value) {}
  LogValue(const std::string& value) : value_(std::string_view(value)) {}
  LogValue(const char* value) : value_(std::string_view(value)) {}
  // NOLINTEND(google-explicit-constructor)

  using Variant = std::variant<bool, int64_t, uint64_t, double, std::string_view>;
  const Variant& get() const { return value_; }

 private:
  Variant value_;
};

struct LogField {
  std::string_view key;  // [a-z0-9_]+, with the unit last: ttft_ms
  LogValue value;
};
using LogFields = std::initializer_list<LogField>;

// Whether lines of this level are written; check it before computing an expensive field.
bool LogEnabled(LogLevel level);
void Log(LogLevel level, std::string_view event, LogFields fields = {});
inline void LogDebug(std::string_view event, LogFields fields = {}) {
  Log(LogLevel::kDebug, event, fields);
}
inline void LogInfo(std::string_view event, LogFields fields = {}) {
  Log(LogLevel::kInfo, event, fields);
}
inline void LogWarning(std::string_view event, LogFields fields = {}) {
  Log(LogLevel::kWarning, event, fields);
}
inline void LogError(std::string_view event, LogFields fields = {}) {
  Log(LogLevel::kError, event, fields);
}

// For events that may come in floods: passes one line per period and reports how many were
// suppressed since. Only the owner's thread may use it.
class LogThrottle {
 public:
  explicit LogThrottle(Duration period) : period_(period) {}
  void Log(Instant now, LogLevel level, std::string_view event, LogFields fields = {});

 private:
  const Duration period_;
  Instant next_{INT64_MIN};
  uint64_t suppressed_ = 0;
};

struct LogStats {
  uint64_t lines_written = 0;
  // Because the queue was full or stderr did not accept them.
  uint64_t lines_dropped = 0;
};
LogStats GetLogStats();

// Waits until every line logged so far is written or dropped, at most `limit`; used before abort.
void FlushLog(Duration limit);

// While it exists, the process logs by `options`, asynchronously. The destructor writes what is
// queued but does not wait for a stuck reader. At most one at a time; main() owns it.
class LogSession {
 public:
  explicit LogSession(const LogOptions& options);
  LogSession(const LogSession&) = delete;
  LogSession& operator=(const LogSession&) = delete;
  ~LogSession();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
