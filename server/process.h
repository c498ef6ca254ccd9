// What a process of aisp does with its parent and with the operating system: where it lies, how it
// says that it is ready, how it learns that it shall stop. Linux only.
#pragma once

#include <string>
#include <string_view>

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
// none). Main thread.
class StopSignals {
 public:
  // `reload`: SIGHUP is waited for too, instead of ending the process.
  explicit StopSignals(int lifeline_fd, bool reload = false);
  ~StopSignals();
  StopSignals(const StopSignals&) = delete;
  StopSignals& operator=(const StopSignals&) = delete;

  // What WaitFor says for SIGHUP.
  static constexpr const char* kReload = "SIGHUP";

  // Blocks until one comes; says which, for the log.
  std::string Wait();
  // As Wait, for at most `timeout_ms`; "" when none came.
  std::string WaitFor(int timeout_ms);
  int signal_fd() const { return signal_fd_; }

 private:
  int signal_fd_;
  int lifeline_fd_;
};

}  // namespace aisp
