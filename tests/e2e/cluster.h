// A real cluster for tests: router, prefill and decode workers as separate processes of the built
// binary, on free loopback ports, each with a pipe on which it announces its addresses. The
// destructor kills all of them.
#pragma once

#include <signal.h>

#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace aisp::e2e {

// One process of the binary under test.
class Process {
 public:
  // `args` without the program; --announce-fd is added. `log`: a file for its stdout and stderr
  // instead of ours. `sockets`: flag ("http-fd") and listening socket, which the caller keeps.
  explicit Process(std::vector<std::string> args, const std::string& log = "",
                   const std::vector<std::pair<std::string, int>>& sockets = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  // Waits until the process has announced `key`; returns its value, or "" when it ended or
  // `timeout` passed. Several servers that open one GPU at once wait for each other.
  std::string Await(const std::string& key,
                    std::chrono::milliseconds timeout = std::chrono::seconds(60));
  void Signal(int signal) const;
  // Waits for the end; returns the exit code, 128 + signal, or -1 after `timeout`.
  int AwaitExit(std::chrono::milliseconds timeout);
  bool Running();
  pid_t pid() const { return pid_; }

 private:
  void ReadAnnouncements();

  pid_t pid_ = -1;
  int exit_code_ = -1;
  int announce_fd_ = -1;
  int lifeline_fd_ = -1;  // closes when we end in any way, and then `aisp serve` ends too
  std::string partial_;
  std::map<std::string, std::string> said_;
};

// A command that ends by itself, as typed into a shell.
struct Ran {
  int code = -1;
  std::string output;  // stdout and stderr
};
Ran RunAisp(const std::string& arguments);

struct ClusterOptions {
  int prefill = 1;
  int decode = 1;
  std::vector<std::string> flags = {};  // for every process
  std::vector<std::string> router_flags = {};
  std::vector<std::string> worker_flags = {};
};

// With AISP_E2E_LOGS=FOLDER in the environment each process logs to its own file there, at level
// info: NAME.N.log; N counts the processes of the cluster.
class Cluster {
 public:
  explicit Cluster(const ClusterOptions& options);

  // True when every worker is registered.
  bool AwaitReady();
  std::unique_ptr<Process> StartWorker(const std::string& role, const std::string& id,
                                       const std::vector<std::string>& flags = {});

  const std::string& http() const { return http_; }

  std::unique_ptr<Process> router;
  std::vector<std::unique_ptr<Process>> prefill;
  std::vector<std::unique_ptr<Process>> decode;

 private:
  std::unique_ptr<Process> Start(const std::string& name, std::vector<std::string> args);

  const ClusterOptions options_;
  int started_ = 0;
  std::string http_;
  std::string workers_;
};

// Waits until `done()`; false after `timeout`. Polls every `interval`, for conditions that only
// another process knows. The default is for a machine under ten times the load that it can bear.
bool Eventually(const std::function<bool()>& done,
                std::chrono::milliseconds timeout = std::chrono::seconds(60),
                std::chrono::milliseconds interval = std::chrono::milliseconds(20));

}  // namespace aisp::e2e
