#include "tests/e2e/cluster.h"

#include <fcntl.h>
#include <poll.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <thread>
#include <utility>

extern char** environ;

namespace aisp::e2e {
namespace {

using Clock = std::chrono::steady_clock;

std::vector<std::string> Join(std::vector<std::string> a, const std::vector<std::string>& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// The child has descriptors from kLifelineFd on. In the parent the sources must have other numbers:
// placing one would otherwise close another that is still to be placed.
constexpr int kLifelineFd = 99, kAnnounceFd = 100, kFirstFree = 128;

// A copy of `fd` above these numbers, which the child does not inherit.
int CopyBeyond(int fd) { return fcntl(fd, F_DUPFD_CLOEXEC, kFirstFree); }

}  // namespace

Process::Process(std::vector<std::string> args, const std::string& log,
                 const std::vector<std::pair<std::string, int>>& sockets) {
  int fds[2], lifeline[2];
  if (pipe2(fds, O_CLOEXEC) != 0) return;
  if (pipe2(lifeline, O_CLOEXEC) != 0) {
    close(fds[0]);
    close(fds[1]);
    return;
  }
  if (args[0] == "serve") args.push_back("--lifeline-fd=" + std::to_string(kLifelineFd));
  args.insert(args.begin(), AISP_BINARY_DIR "/bin/aisp");
  args.push_back("--announce-fd=" + std::to_string(kAnnounceFd));
  for (size_t i = 0; i < sockets.size(); ++i) {
    args.push_back("--" + sockets[i].first + "=" +
                   std::to_string(kAnnounceFd + 1 + static_cast<int>(i)));
  }
  std::vector<char*> argv;
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  std::vector<int> copies = {CopyBeyond(lifeline[0]), CopyBeyond(fds[1])};
  for (const auto& [flag, fd] : sockets) copies.push_back(CopyBeyond(fd));
  for (size_t i = 0; i < copies.size(); ++i)
    posix_spawn_file_actions_adddup2(&actions, copies[i], kLifelineFd + static_cast<int>(i));
  if (!log.empty()) {
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, log.c_str(),
                                     O_WRONLY | O_CREAT | O_TRUNC, 0600);
    posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
  }
  if (posix_spawn(&pid_, argv[0], &actions, nullptr, argv.data(), environ) != 0) pid_ = -1;
  posix_spawn_file_actions_destroy(&actions);
  for (const int copy : copies) close(copy);
  close(fds[1]);
  close(lifeline[0]);
  lifeline_fd_ = lifeline[1];
  announce_fd_ = fds[0];
  fcntl(announce_fd_, F_SETFL, O_NONBLOCK);
}

Process::~Process() {
  if (Running()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  if (announce_fd_ >= 0) close(announce_fd_);
  if (lifeline_fd_ >= 0) close(lifeline_fd_);
}

void Process::ReadAnnouncements() {
  char buffer[1024];
  ssize_t n = 0;
  while ((n = read(announce_fd_, buffer, sizeof buffer)) > 0)
    partial_.append(buffer, static_cast<size_t>(n));
  if (n == 0) {
    close(announce_fd_);
    announce_fd_ = -1;
  }
  size_t end = 0;
  while ((end = partial_.find('\n')) != std::string::npos) {
    const std::string line = partial_.substr(0, end);
    partial_.erase(0, end + 1);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) said_[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::string Process::Await(const std::string& key, std::chrono::milliseconds timeout) {
  const auto deadline = Clock::now() + timeout;
  if (announce_fd_ >= 0) ReadAnnouncements();  // the newest value counts
  while (said_.count(key) == 0 && announce_fd_ >= 0) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - Clock::now()).count();
    if (left <= 0) return "";
    pollfd fd{announce_fd_, POLLIN, 0};
    if (poll(&fd, 1, static_cast<int>(left)) > 0) ReadAnnouncements();
  }
  return said_[key];
}

void Process::Signal(int signal) const {
  if (pid_ > 0) kill(pid_, signal);
}

bool Process::Running() {
  if (pid_ <= 0 || exit_code_ >= 0) return false;
  int status = 0;
  if (waitpid(pid_, &status, WNOHANG) != pid_) return true;
  exit_code_ = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
  return false;
}

int Process::AwaitExit(std::chrono::milliseconds timeout) {
  Eventually([this] { return !Running(); }, timeout);
  return exit_code_;
}

Ran RunAisp(const std::string& arguments) {
  Ran ran;
  FILE* pipe =
      popen((std::string(AISP_BINARY_DIR "/bin/aisp ") + arguments + " 2>&1").c_str(), "r");
  if (pipe == nullptr) return ran;
  std::array<char, 4096> buffer;
  while (size_t n = fread(buffer.data(), 1, buffer.size(), pipe))
    ran.output.append(buffer.data(), n);
  ran.code = WEXITSTATUS(pclose(pipe));
  return ran;
}

Cluster::Cluster(const ClusterOptions& options) : options_(options) {
  router = Start("router", Join(Join({"serve", "--role=router", "--port=0",
                                      "--router-listen=127.0.0.1:0", "--log-level=warning"},
                                     options.flags),
                                options.router_flags));
  http_ = router->Await("http");
  workers_ = router->Await("workers");
  for (int i = 0; i < options.prefill; ++i)
    prefill.push_back(StartWorker("prefill", "prefill-" + std::to_string(i)));
  for (int i = 0; i < options.decode; ++i)
    decode.push_back(StartWorker("decode", "decode-" + std::to_string(i)));
}

std::unique_ptr<Process> Cluster::Start(const std::string& name, std::vector<std::string> args) {
  std::string log;
  if (const char* folder = std::getenv("AISP_E2E_LOGS"); folder != nullptr) {
    log = std::string(folder) + "/" + name + "." + std::to_string(++started_) + ".log";
    args.push_back("--log-level=info");
  }
  return std::make_unique<Process>(std::move(args), log);
}

std::unique_ptr<Process> Cluster::StartWorker(const std::string& role, const std::string& id,
                                              const std::vector<std::string>& flags) {
  std::vector<std::string> own = Join({"serve", "--role=" + role, "--worker-id=" + id,
                                       "--routers=" + workers_, "--log-level=warning"},
                                      options_.flags);
  return Start(id, Join(Join(own, options_.worker_flags), flags));
}

bool Cluster::AwaitReady() {
  for (auto* group : {&prefill, &decode}) {
    for (auto& worker : *group) {
      if (worker->Await("ready").empty()) return false;
    }
  }
  return true;
}

bool Eventually(const std::function<bool()>& done, std::chrono::milliseconds timeout,
                std::chrono::milliseconds interval) {
  const auto deadline = Clock::now() + timeout;
  while (!done()) {
    if (Clock::now() >= deadline) return false;
    std::this_thread::sleep_for(interval);
  }
  return true;
}

}  // namespace aisp::e2e
