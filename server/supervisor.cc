#include "server/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "common/log.h"
#include "common/strings.h"
#include "server/process.h"

extern char** environ;

namespace aisp {
namespace {

// A worker that died is started again after this, doubled each time, until it has lived for kSettled.
constexpr Duration kFirstRestartDelay = std::chrono::milliseconds(100);
constexpr int kMaxQuickDeaths = 6;
constexpr Duration kSettled = std::chrono::seconds(10);

int PidfdOpen(pid_t pid) { return static_cast<int>(syscall(SYS_pidfd_open, pid, 0)); }

// A memfd that holds the child's configuration; the child reads it as /dev/fd/N.
int ConfigFile(const Config& config) {
  const std::string text = PrintConfig(config, Secrets::kShown);
  const int fd = memfd_create("aisp-config", 0);
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

struct Child {
  std::string name;
  Config config;
  pid_t pid = -1;
  int pidfd = -1;
  int announce_fd = -1;
  std::string partial;
  std::map<std::string, std::string> said;
  Instant started;
  Instant restart_at = kNever;
  int quick_deaths = 0;

  bool running() const { return pid > 0; }
  bool ready() const { return said.count("ready") != 0; }
};

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

}  // namespace

struct Supervisor::Impl {
  explicit Impl(const Config& c) : config(c) {}

  Status SpawnRouter();
  Status SpawnWorkers();
  Status Spawn(Child& child);
  Status AwaitReady(StopSignals* signals, Instant deadline, bool (*done)(const Impl&),
                    std::string_view what);
  void ReadAnnouncements(Child& child);
  bool Reap(Child& child, int* status);
  Status OnDeath(Child& child, int status);
  // Waits for something to happen; returns the stop signal if one came.
  std::string PollOnce(StopSignals* signals, Instant until);
  void Signal(const std::vector<Child*>& children, int signal);
  bool AwaitExit(const std::vector<Child*>& children, StopSignals* signals, Instant deadline);

  Child& router() { return *children.front(); }

  Config config;
  SteadyClock clock;
  std::vector<std::unique_ptr<Child>> children;  // the router first
  int lifeline[2] = {-1, -1};
  std::string http;
};

Supervisor::Supervisor(const Config& config) : impl_(std::make_unique<Impl>(config)) {}

Supervisor::~Supervisor() {
  for (auto& child : impl_->children) {
    if (child->running()) kill(child->pid, SIGKILL);
    if (child->running()) waitpid(child->pid, nullptr, 0);
    CloseFd(child->pidfd);
    CloseFd(child->announce_fd);
  }
  CloseFd(impl_->lifeline[0]);
  CloseFd(impl_->lifeline[1]);
}

const std::string& Supervisor::http_address() const { return impl_->http; }

Status Supervisor::Impl::Spawn(Child& child) {
  int announce[2];
  if (pipe2(announce, O_CLOEXEC) != 0) return Internal(fmt::format("pipe: {}", strerror(errno)));
  const int config_fd = ConfigFile(child.config);
  if (config_fd < 0) return Internal(fmt::format("memfd_create: {}", strerror(errno)));

  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  // dup2 onto fixed numbers also clears close-on-exec; 100.. is above what a parent usually has open.
  constexpr int kConfigFd = 100, kAnnounceFd = 101, kLifelineFd = 102;
  posix_spawn_file_actions_adddup2(&actions, config_fd, kConfigFd);
  posix_spawn_file_actions_adddup2(&actions, announce[1], kAnnounceFd);
  posix_spawn_file_actions_adddup2(&actions, lifeline[0], kLifelineFd);
  posix_spawnattr_t attributes;
  posix_spawnattr_init(&attributes);
  // Own process groups: Ctrl-C in the terminal reaches only the supervisor, which stops its children in order.
  posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
  posix_spawnattr_setpgroup(&attributes, 0);
  sigset_t empty;
  sigemptyset(&empty);
  posix_spawnattr_setsigmask(&attributes, &empty);

  std::string argv0 = "aisp", serve = "serve",
              config_flag = fmt::format("--config=/dev/fd/{}", kConfigFd);
  std::string announce_flag = fmt::format("--announce-fd={}", kAnnounceFd);
  std::string lifeline_flag = fmt::format("--lifeline-fd={}", kLifelineFd);
  char* argv[] = {argv0.data(),         serve.data(),         config_flag.data(),
                  announce_flag.data(), lifeline_flag.data(), nullptr};
  // By its path, not as /proc/self/exe, under which every process would be called "exe".
  const std::string program = ExecutablePath();
  const int error = posix_spawn(&child.pid, program.c_str(), &actions, &attributes, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  posix_spawnattr_destroy(&attributes);
  close(config_fd);
  close(announce[1]);
  if (error != 0) {
    child.pid = -1;
    close(announce[0]);
    return Internal(fmt::format("cannot start {}: {}", child.name, strerror(error)));
  }
  CloseFd(child.announce_fd);
  child.announce_fd = announce[0];
  fcntl(child.announce_fd, F_SETFL, O_NONBLOCK);
  child.pidfd = PidfdOpen(child.pid);
  child.partial.clear();
  child.said.clear();
  child.started = clock.Now();
  child.restart_at = kNever;
  return {};
}

Status Supervisor::Impl::SpawnRouter() {
  auto child = std::make_unique<Child>();
  child->name = "router";
  child->config = config;
  child->config.role = "router";
  // A fixed port only where somebody asked for one: two `aisp up` on one machine shall not meet.
  if (config.router.listen == Config().router.listen) child->config.router.listen = "127.0.0.1:0";
  children.push_back(std::move(child));
  return Spawn(router());
}

Status Supervisor::Impl::SpawnWorkers() {
  auto add = [&](const char* role, int64_t index) {
    auto child = std::make_unique<Child>();
    child->name = fmt::format("{}-{}", role, index);
    child->config = config;
    child->config.role = role;
    child->config.worker.id = child->name;
    child->config.worker.routers = {router().said["workers"]};
    child->config.worker.admin_port = 0;
    children.push_back(std::move(child));
    return Spawn(*children.back());
  };
  for (int64_t i = 0; i < config.up.prefill_workers; ++i) AISP_RETURN_IF_ERROR(add("prefill", i));
  for (int64_t i = 0; i < config.up.decode_workers; ++i) AISP_RETURN_IF_ERROR(add("decode", i));
  return {};
}

void Supervisor::Impl::ReadAnnouncements(Child& child) {
  char buffer[4096];
  ssize_t n = 0;
  while ((n = read(child.announce_fd, buffer, sizeof buffer)) > 0)
    child.partial.append(buffer, static_cast<size_t>(n));
  if (n == 0) CloseFd(child.announce_fd);
  size_t end = 0;
  while ((end = child.partial.find('\n')) != std::string::npos) {
    const std::string line = child.partial.substr(0, end);
    child.partial.erase(0, end + 1);
    const size_t equals = line.find('=');
    if (equals != std::string::npos) child.said[line.substr(0, equals)] = line.substr(equals + 1);
  }
}

std::string Supervisor::Impl::PollOnce(StopSignals* signals, Instant until) {
  std::vector<pollfd> fds{{signals->signal_fd(), POLLIN, 0}};
  for (auto& child : children) {
    fds.push_back({child->announce_fd, POLLIN, 0});
    fds.push_back({child->pidfd, POLLIN, 0});
  }
  int timeout_ms = -1;
  if (until != kNever) {
    timeout_ms = static_cast<int>(
        std::clamp<int64_t>((until - clock.Now()).count() / 1'000'000 + 1, 0, 60'000));
  }
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return "";
  for (auto& child : children) {
    if (child->announce_fd >= 0) ReadAnnouncements(*child);
  }
  return (fds[0].revents & POLLIN) != 0 ? signals->WaitFor(0) : std::string();
}

bool Supervisor::Impl::Reap(Child& child, int* status) {
  if (!child.running() || waitpid(child.pid, status, WNOHANG) != child.pid) return false;
  child.pid = -1;
  CloseFd(child.pidfd);
  if (child.announce_fd >= 0) ReadAnnouncements(child);
  return true;
}

Status Supervisor::Impl::AwaitReady(StopSignals* signals, Instant deadline,
                                    bool (*done)(const Impl&), std::string_view what) {
  while (!done(*this)) {
    if (clock.Now() >= deadline)
      return Fail(Code::kDeadlineExceeded, fmt::format("{} did not become ready in time", what));
    const std::string signal = PollOnce(signals, deadline);
    if (!signal.empty()) return Fail(Code::kCancelled, signal);
    for (auto& child : children) {
      int status = 0;
      if (Reap(*child, &status)) {
        return Unavailable(fmt::format("{} ended while starting ({}); its message stands above",
                                       child->name, ExitText(status)));
      }
    }
  }
  return {};
}

Status Supervisor::Start(StopSignals* signals, Duration timeout) {
  Impl& impl = *impl_;
  const Instant deadline = impl.clock.Now() + timeout;
  if (pipe2(impl.lifeline, O_CLOEXEC) != 0)
    return Internal(fmt::format("pipe: {}", strerror(errno)));
  AISP_RETURN_IF_ERROR(impl.SpawnRouter());
  auto router_up = [](const Impl& i) { return i.children.front()->said.count("workers") != 0; };
  AISP_RETURN_IF_ERROR(impl.AwaitReady(signals, deadline, router_up, "the router"));
  impl.http = impl.router().said["http"];
  AISP_RETURN_IF_ERROR(impl.SpawnWorkers());
  auto all_ready = [](const Impl& i) {
    return std::all_of(i.children.begin() + 1, i.children.end(),
                       [](const auto& c) { return c->ready(); });
  };
  return impl.AwaitReady(signals, deadline, all_ready, "a worker");
}

Status Supervisor::Impl::OnDeath(Child& child, int status) {
  const std::string how = ExitText(status);
  if (&child == &router()) return Unavailable(fmt::format("the router ended ({})", how));
  if (clock.Now() - child.started > kSettled) child.quick_deaths = 0;
  if (++child.quick_deaths > kMaxQuickDeaths) {
    return Unavailable(fmt::format("{} ended {} times within {} s of its start ({})", child.name,
                                   child.quick_deaths, ToSeconds(kSettled), how));
  }
  const Duration delay = kFirstRestartDelay * (1 << (child.quick_deaths - 1));
  child.restart_at = clock.Now() + delay;
  LogWarning("worker ended, restarting",
             {{"worker", child.name}, {"how", how}, {"delay_ms", ToMs(delay)}});
  return {};
}

Result<std::string> Supervisor::Watch(StopSignals* signals) {
  Impl& impl = *impl_;
  for (;;) {
    Instant until = kNever;
    for (auto& child : impl.children) until = std::min(until, child->restart_at);
    const std::string signal = impl.PollOnce(signals, until);
    if (!signal.empty()) return signal;
    for (auto& child : impl.children) {
      int status = 0;
      if (impl.Reap(*child, &status)) AISP_RETURN_IF_ERROR(impl.OnDeath(*child, status));
      if (child->restart_at != kNever && impl.clock.Now() >= child->restart_at)
        AISP_RETURN_IF_ERROR(impl.Spawn(*child));
    }
  }
}

void Supervisor::Impl::Signal(const std::vector<Child*>& targets, int signal) {
  for (Child* child : targets) {
    if (child->running()) kill(child->pid, signal);
  }
}

// True when all have ended by `deadline`; false at the deadline or when another stop signal asks for haste.
bool Supervisor::Impl::AwaitExit(const std::vector<Child*>& targets, StopSignals* signals,
                                 Instant deadline) {
  for (;;) {
    bool all = true;
    for (Child* child : targets) {
      int status = 0;
      Reap(*child, &status);
      all = all && !child->running();
    }
    if (all) return true;
    if (clock.Now() >= deadline || !PollOnce(signals, deadline).empty()) return false;
  }
}

void Supervisor::Stop(StopSignals* signals) {
  Impl& impl = *impl_;
  if (impl.children.empty()) return;
  const std::vector<Child*> router{&impl.router()};
  std::vector<Child*> workers;
  for (size_t i = 1; i < impl.children.size(); ++i) workers.push_back(impl.children[i].get());
  // A little more than the children's own drain time, after which they end by themselves.
  const Duration patience = impl.config.drain_timeout + std::chrono::seconds(2);
  for (const auto& group : {router, workers}) {
    impl.Signal(group, SIGTERM);
    if (impl.AwaitExit(group, signals, impl.clock.Now() + patience)) continue;
    impl.Signal(group, SIGKILL);
    impl.AwaitExit(group, signals, impl.clock.Now() + std::chrono::seconds(5));
  }
}

}  // namespace aisp
