// The process's log: one line per event on stderr, as text for people or JSON for machines.
//
//   LogInfo("request finished", {{"request", id}, {"tokens", n}, {"ttft_ms", ttft}});
//
// The event is a constant phrase and what varies is in the fields, so that events can be counted
// and searched. Any thread may log. There is one log because there is one stderr; main() configures
// it by owning a LogSession, without which (tests, tools) lines of level info and above are written
// as text before the call returns.
//
// Logging never fails and never blocks a serving thread: a LogSession writes on a thread of its own
// from a bounded queue, and what cannot be written (stderr closed, disk full, a pipe whose reader
// sleeps) is counted in LogStats and dropped.
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

// Whose line it is: the first two fields of every line, so that the lines of several processes can
// share one terminal.
struct LogIdentity {
  std::string role;  // "router", "prefill", "decode", "supervisor"; "": left out
  std::string id;    // "decode-0"
};

struct LogOptions {
  LogLevel level = LogLevel::kInfo;
  LogFormat format = LogFormat::kText;
  // Lines that may wait for the writer; those that find the queue full are dropped.
  size_t queue_lines = 8192;
  // Where lines go; not owned.
  int fd = 2;
  // Of this process, for threads without one of their own.
  LogIdentity identity = {};
};

// From now on this thread logs as `identity`: for a worker that shares its process with others.
// Until the thread ends.
void SetThreadLogIdentity(LogIdentity identity);

// A field's value; a string is not copied, it must live until the call returns.
class LogValue {
 public:
  // Implicit, so that {{"key", value}} reads as it does. NOLINTBEGIN(google-explicit-constructor)
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
  std::string_view key;  // [a-z0-9_]+, the unit last: ttft_ms
  LogValue value;
};
using LogFields = std::initializer_list<LogField>;

// Whether lines of this level are written; for a field that is expensive to compute.
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

// For an event that can come in floods: lets one line through per period and then says how many
// were suppressed since the last. The owner's thread only.
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
  // By a full queue, or by a stderr that would not take them.
  uint64_t lines_dropped = 0;
};
LogStats GetLogStats();

// Waits until every line logged so far has been written or dropped, `limit` at most; for what comes
// before an abort.
void FlushLog(Duration limit);

// From construction to destruction the process logs by `options`, asynchronously. The destructor
// writes what is queued, but does not wait for a reader that is stuck. At most one at a time;
// main() owns it.
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
