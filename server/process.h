// What a process of aisp does with its parent and with the operating system: where it lies, how it
// says that it is ready, how it learns that it shall stop. Linux only.
#pragma once

#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

// The running program, and its folder.
std::string ExecutablePath();
std::string ExecutableFolder();

// The machine's boot id: equal for all processes that can share memory. "" where it cannot be read.
std::string BootId();
// A name that no process on any host or in any container has: the role, the host (cut short) and
// random digits.
std::string UniqueName(std::string_view role, std::string_view host_id);

// Says "key=value" to the supervisor that started us, over an inherited pipe; fd -1: nobody
// listens. Any thread.
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

// Blocks SIGINT, SIGTERM and SIGCHLD in this and all later threads; they are then read by
// StopSignals. Before any thread is started.
void BlockSignals();

// A write to a closed pipe or socket is an error of that write, and nothing else.
void IgnoreBrokenPipes();

// Ends this process as SIGTERM from outside would. Any thread.
void StopThisProcess();

// Waits for SIGINT, SIGTERM or the end of the supervisor (its end of `lifeline_fd` closes; -1:
// none). A stop signal that is read within kOnce of another one is the same: `timeout`, and who
// stops a process and its group, send it twice. Main thread.
class StopSignals {
 public:
  // `reload`: SIGHUP is waited for too, instead of ending the process.
  explicit StopSignals(int lifeline_fd, bool reload = false, const Clock* clock = nullptr);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // What WaitFor says for SIGHUP.
  static constexpr const char* kReload = "SIGHUP";
  static constexpr Duration kOnce = std::chrono::milliseconds(500);

  // Blocks until one comes; says which, for the log.
  std::string Wait();
  // As Wait, for at most `timeout_ms`; "" when none came.
  std::string WaitFor(int timeout_ms);
  int signal_fd() const { return signal_fd_; }

 private:
  // The signal that was read, "" when it is one that was heard already.
  std::string Heard(int signal);

  const SteadyClock steady_;
  const Clock* const clock_;
  int signal_fd_;
  int lifeline_fd_;
  Instant last_stop_ = kNever;
};

}  // namespace aisp
