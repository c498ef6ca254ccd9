#include "server/child_process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "server/process.h"

extern char** environ;

namespace aisp {
namespace {

// Fixed numbers for inherited descriptors, above those that a parent usually has open.
constexpr int kConfigFd = 100, kAnnounceFd = 101, kLifelineFd = 102, kFirstSocketFd = 103;

int PidfdOpen(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A memfd with the child's configuration; the child reads it as /dev/fd/N.
int ConfigFile(const Config& config) {
  const std::string text = PrintConfig(config, Secrets::kShown);
  const int fd = memfd_create("aisp-config", MFD_CLOEXEC);
  if (fd < 0) return -1;
  size_t done = 0;
  while (done < text.size()) {
    const ssize_t n = write(fd, text.data() + done, text.size() - done);
    if (n <= 0) break;
    done += static_cast<size_t>(n);
  }
  lseek(fd, 0, SEEK_SET);
  return fd;
}

void CloseFd(int& fd) {
  if (fd >= 0) close(fd);
  fd = -1;
}

std::string ExitText(int status) {
  if (WIFEXITED(status)) return fmt::format("exit code {}", WEXITSTATUS(status));
  if (WIFSIGNALED(status))
    return fmt::format("signal {} ({})", WTERMSIG(status), strsignal(WTERMSIG(status)));
  return fmt::format("wait status {}", status);
}

// A process group of its own: Ctrl-C reaches only the supervisor, which stops children in order.
void SetAttributes(posix_spawnattr_t* attributes) {
  posix_spawnattr_init(attributes);
  posix_spawnattr_setflags(attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(attributes, 0);
  sigset_t empty;
  sigemptyset(&empty);
  posix_spawnattr_setsigmask(attributes, &empty);
}

}  // namespace

ChildProcess::~ChildProcess() {
  if (running()) {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }
  CloseFd(pidfd_);
  CloseFd(announce_fd_);
}

Status ChildProcess::Spawn(int lifeline_fd, const std::string& last_exit, Instant now) {
  int announce[2];
  if (pipe2(announce, O_CLOEXEC) != 0) return Internal(fmt::format("pipe: {}", strerror(errno)));
  int config_fd = ConfigFile(config_);
  if (config_fd < 0) {
    close(announce[0]);
    close(announce[1]);
    return Internal(fmt::format("memfd_create: {}", strerror(errno)));
  }
  // Role and name come first, since `ps` cuts long command lines.
  std::vector<std::string> args = {"aisp"};
  if (command_.empty()) {
    args.insert(args.end(), {"serve", "--role=" + config_.role, "--name=" + name_});
  } else {
    args.insert(args.end(), command_.begin(), command_.end());
  }
  args.push_back(fmt::format("--config=/dev/fd/{}", kConfigFd));
  args.push_back(fmt::format("--announce-fd={}", kAnnounceFd));
  args.push_back(fmt::format("--lifeline-fd={}", kLifelineFd));
  if (!last_exit.empty()) args.push_back("--last-exit=" + last_exit);
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // dup2 to another number also clears close-on-exec.
  posix_spawn_file_actions_adddup2(&actions, config_fd, kConfigFd);
  posix_spawn_file_actions_adddup2(&actions, announce[1], kAnnounceFd);
  posix_spawn_file_actions_adddup2(&actions, lifeline_fd, kLifelineFd);
  int socket_fd = kFirstSocketFd;
  for (const auto& [flag, fd] : sockets_) {
    posix_spawn_file_actions_adddup2(&actions, fd, socket_fd);
    args.push_back(fmt::format("--{}={}", flag, socket_fd++));
  }
  posix_spawnattr_t attributes;
  SetAttributes(&attributes);
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  // Not /proc/self/exe, under which every process would be named "exe".
  const std::string program = ExecutablePath();
  const int error =
      posix_spawn(&pid_, program.c_str(), &actions, &attributes, argv.data(), environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  CloseFd(config_fd);
  CloseFd(announce[1]);
  if (error != 0) {
    pid_ = -1;
    CloseFd(announce[0]);
    return Internal(fmt::format("cannot start {}: {}", name_, strerror(error)));
  }
  CloseFd(announce_fd_);
  announce_fd_ = announce[0];
  fcntl(announce_fd_, F_SETFL, O_NONBLOCK);
  pidfd_ = PidfdOpen(pid_);
  partial_.clear();
  said_.clear();
  started_ = now;
  return {};
}

void ChildProcess::Signal(int signal) const {
  if (running()) kill(pid_, signal);
}

bool ChildProcess::Reap(std::string* how, std::string* last_exit) {
  int status = 0;
  if (!running() || waitpid(pid_, &status, WNOHANG) != pid_) return false;
  *last_exit = fmt::format("{}:{}:{}", pid_, WIFSIGNALED(status) ? WTERMSIG(status) : 0,
                           WIFEXITED(status) ? WEXITSTATUS(status) : 0);
  pid_ = -1;
  CloseFd(pidfd_);
  ReadAnnouncements();
  *how = ExitText(status);
  return true;
}

void ChildProcess::ReadAnnouncements() {
  if (announce_fd_ < 0) return;
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(announce_fd_, buffer, sizeof buffer)) > 0)
    partial_.append(buffer, static_cast<size_t>(n));
  if (n == 0) CloseFd(announce_fd_);
  size_t end = 0;
  while ((end = partial_.find('\n')) != std::string::npos) {
    const std::string line = partial_.substr(0, end);
    partial_.erase(0, end + 1);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) said_[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::string ChildProcess::Said(const std::string& key) const {
  const auto it = said_.find(key);
  return it == said_.end() ? "" : it->second;
}

}  // namespace aisp
