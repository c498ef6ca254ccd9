// A process's dealings with its parent and the operating system: its paths, readiness announcements
// and stop signals. Linux only.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

// Path of the running program / of its folder.
std::string ExecutablePath();
std::string ExecutableFolder();

// The machine's boot id: equal for processes that can share memory. "" if unreadable.
std::string BootId();
// A name unique over all hosts and containers: the role, the host (cut) and random digits.
std::string UniqueName(std::string_view role, std::string_view host_id);

// Writes "key=value" to the supervisor's pipe; fd -1: no supervisor. Any thread.
class Announcer {
 public:
  explicit Announcer(int fd);
  ~Announcer();
  Announcer(const Announcer&) = delete;
  Announcer& operator=(const Announcer&) = delete;
  void Write(std::string_view key, std::string_view value);

 private:
  int fd_;
};

// Blocks SIGINT, SIGTERM and SIGCHLD in this and all later threads, for StopSignals. Call it before
// any thread is started.
void BlockSignals();

// Makes writes to a closed pipe or socket return an error instead of raising SIGPIPE.
void IgnoreBrokenPipes();

// Raises SIGTERM for this process. Any thread.
void StopThisProcess();

// Waits for SIGINT, SIGTERM or the end of the supervisor (`lifeline_fd` reaches its end; -1: none).
// A stop signal read within kOnce of another one counts as the same: `timeout`, and whoever stops a
// process and its group, sends it twice. Main thread.
class StopSignals {
 public:
  // `reload`: also waits for SIGHUP, which then does not end the process.
  explicit StopSignals(int lifeline_fd, bool reload = false, const Clock* clock = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // WaitFor's result for SIGHUP.
  static constexpr const char* kReload = "SIGHUP";
  static constexpr Duration kOnce = std::chrono::milliseconds(500);

  // Blocks until a signal; returns its name, for the log.
  std::string Wait();
  // As Wait, for at most `timeout_ms`; "" on timeout.
  std::string WaitFor(int timeout_ms);
  int signal_fd() const { return signal_fd_; }

 private:
  // The name of a signal; "" if it only repeats one of a moment ago.
  std::string NameOnce(int signal);

  const SteadyClock steady_;
  const Clock* const clock_;
  int signal_fd_;
  int lifeline_fd_;
  Instant last_stop_ = kNever;
};

}  // namespace aisp
