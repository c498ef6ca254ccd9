#include "server/process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>

#include "common/check.h"
#include "common/strings.h"

namespace aisp {

std::string ExecutablePath() {
  std::error_code error;
  const auto path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? std::string("/proc/self/exe") : path.string();
}

std::string ExecutableFolder() {
  return std::filesystem::path(ExecutablePath()).parent_path().string();
}

std::string BootId() {
  std::ifstream in("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(in, id);
  return id;
}

std::string UniqueName(std::string_view role, std::string_view host_id) {
  constexpr size_t kHostDigits = 8;
  std::random_device device;
  return fmt::format("{}-{}-{:08x}", role, host_id.substr(0, kHostDigits), device());
}

Announcer::Announcer(int fd) : fd_(fd) {
  if (fd_ >= 0) fcntl(fd_, F_SETFD, FD_CLOEXEC);
}

Announcer::~Announcer() {
  if (fd_ >= 0) close(fd_);
}

void Announcer::Write(std::string_view key, std::string_view value) {
  if (fd_ < 0) return;
  std::string line(key);
  line += '=';
  line += value;
  line += '\n';
  // Lines are far shorter than PIPE_BUF, so a write is complete or fails. The loss of the
  // supervisor is noticed on the lifeline.
  [[maybe_unused]] const ssize_t written = write(fd_, line.data(), line.size());
}

void BlockSignals() {
  sigset_t set;
  sigemptyset(&set);
  for (int signal : {SIGINT, SIGTERM, SIGCHLD}) sigaddset(&set, signal);
  AISP_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
}

void IgnoreBrokenPipes() { signal(SIGPIPE, SIG_IGN); }

void StopThisProcess() { kill(getpid(), SIGTERM); }

StopSignals::StopSignals(int lifeline_fd, bool reload, const Clock* clock)
    : clock_(clock == nullptr ? &steady_ : clock), lifeline_fd_(lifeline_fd) {
  sigset_t set;
  sigemptyset(&set);
  if (reload) {
    sigaddset(&set, SIGHUP);
    AISP_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  }
  sigaddset(&set, SIGINT);
  sigaddset(&set, SIGTERM);
  signal_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  AISP_CHECK(signal_fd_ >= 0);
  if (lifeline_fd_ >= 0) fcntl(lifeline_fd_, F_SETFD, FD_CLOEXEC);
}

StopSignals::~StopSignals() {
  close(signal_fd_);
  if (lifeline_fd_ >= 0) close(lifeline_fd_);
}

std::string StopSignals::Wait() { return WaitFor(-1); }

std::string StopSignals::WaitFor(int timeout_ms) {
  for (;;) {
    pollfd fds[2] = {{signal_fd_, POLLIN, 0}, {lifeline_fd_, POLLIN, 0}};
    const nfds_t count = lifeline_fd_ >= 0 ? 2 : 1;
    int ready = 0;
    do {
      ready = poll(fds, count, timeout_ms);
    } while (ready < 0 && errno == EINTR);
    if (ready <= 0) return "";
    signalfd_siginfo info{};
    const bool signalled = (fds[0].revents & POLLIN) != 0;
    if (!signalled || read(signal_fd_, &info, sizeof info) != sizeof info)
      return "the supervisor is gone";
    std::string name = NameOnce(static_cast<int>(info.ssi_signo));
    if (!name.empty() || timeout_ms >= 0) return name;
  }
}

std::string StopSignals::NameOnce(int signal) {
  if (signal == SIGHUP) return kReload;
  const Instant now = clock_->Now();
  const bool same = last_stop_ != kNever && now - last_stop_ < kOnce;
  if (same) return "";
  last_stop_ = now;
  return signal == SIGINT ? "SIGINT" : "SIGTERM";
}

}  // namespace aisp
