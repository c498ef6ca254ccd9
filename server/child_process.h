// ChildProcess: one aisp process under a supervisor: started with a configuration, a pipe for its
// announcements and optional listening sockets, and watched through a pidfd. The destructor kills
// and reaps it. One thread; Linux.
#pragma once

#include <sys/types.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "config/config.h"

namespace aisp {

class ChildProcess {
 public:
  // `sockets`: flag name ("http-fd") and descriptor, owned by the caller. `command`: the command
  // and flags to run instead of `aisp serve`.
  ChildProcess(std::string name, Config config, std::vector<std::pair<std::string, int>> sockets,
               std::vector<std::string> command = {})
      : name_(std::move(name)),
        config_(std::move(config)),
        sockets_(std::move(sockets)),
        command_(std::move(command)) {}
  ~ChildProcess();
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  // Starts the process, which ends when the last writer of `lifeline_fd`'s pipe closes.
  // `last_exit`: how its predecessor ended, in the form of --last-exit; "": there was none.
  Status Spawn(int lifeline_fd, const std::string& last_exit, Instant now);
  void Signal(int signal) const;
  // True once it has ended; says how, for people and as `last_exit` of its successor.
  bool Reap(std::string* how, std::string* last_exit);
  // Reads its announcements.
  void ReadAnnouncements();

  const std::string& name() const { return name_; }
  const Config& config() const { return config_; }
  bool running() const { return pid_ > 0; }
  pid_t pid() const { return pid_; }
  Instant started() const { return started_; }
  // The announced value of `key`; "" if not announced.
  std::string Said(const std::string& key) const;
  // Readable on a new announcement / when the process has ended; -1: none.
  int announce_fd() const { return announce_fd_; }
  int pidfd() const { return pidfd_; }

 private:
  const std::string name_;
  const Config config_;
  const std::vector<std::pair<std::string, int>> sockets_;
  const std::vector<std::string> command_;
  pid_t pid_ = -1;
  int pidfd_ = -1;
  int announce_fd_ = -1;
  std::string partial_;
  std::map<std::string, std::string> said_;
  Instant started_;
};

}  // namespace aisp
