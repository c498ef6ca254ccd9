#include "server/supervisor.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <set>

#include "common/log.h"
#include "net/host_port.h"
#include "net/listen_socket.h"
#include "planner/planner.h"
#include "server/child_process.h"
#include "server/process.h"

namespace aisp {
namespace {

// Delay before a dead process is restarted; doubled each time until it has lived for kSettled.
constexpr Duration kFirstRestartDelay = std::chrono::milliseconds(100);
constexpr int kMaxQuickDeaths = 6;
constexpr Duration kLongestRestartDelay = std::chrono::seconds(30);
constexpr Duration kSettled = std::chrono::seconds(10);
// A replacement must be ready within this time, else the old process stays.
constexpr Duration kReplaceTimeout = std::chrono::minutes(10);
// Added to the drain time, within which a draining process ends by itself.
constexpr Duration kPatience = std::chrono::seconds(10);

// One position in the cluster: a router, prefill-0, decode-1.
struct Slot {
  std::string name;
  Config config;
  int generation = 0;  // number of replacements on request
  std::unique_ptr<ChildProcess> child;
  std::unique_ptr<ChildProcess> successor;  // set during a replacement
  Instant restart_at = kNever;
  int quick_deaths = 0;
  bool leaving = false;   // `child` was told to end
  std::string last_exit;  // of a child that ended unasked

  bool router() const { return config.role == "router"; }
  bool planner() const { return config.role == "planner"; }
  // Stops before the workers, so that it does not change their roles or send requests meanwhile.
  bool ends_first() const { return router() || planner(); }
};

bool IsReady(const Slot& slot, const ChildProcess& child) {
  const char* const says = slot.router() ? "workers" : slot.planner() ? "admin" : "ready";
  return !child.Said(says).empty();
}

}  // namespace

struct Supervisor::Impl {
  Impl(const Config& c, Announcer* a, PlannerChoice p) : config(c), announcer(a), planner(p) {}

  Status OpenSockets();
  Status OpenClientGrpc();
  Status OpenAdmin();
  void AddSlots();
  bool Plans() const;
  void AddPlanner();
  std::unique_ptr<ChildProcess> MakeChild(const Slot& slot) const;
  Status SpawnIn(Slot& slot);
  Status Spawn(const Slot& slot, ChildProcess& child);
  // Waits for an event; returns the signal's name if it was one.
  std::string PollOnce(StopSignals* signals, Instant until);
  // Reaps and restarts processes.
  Status Tend();
  Status OnDeath(Slot& slot, const std::string& how);
  // Whether requests are served without this worker.
  bool ServedWithout(const Slot& slot) const;
  // Runs Tend until `done`. Errors: Tend's, DEADLINE_EXCEEDED, or CANCELLED with the signal's name.
  // A reload requested meanwhile is remembered.
  Status Await(StopSignals* signals, Instant deadline, const std::function<bool()>& done,
               std::string_view what);
  Status ReplaceAll(StopSignals* signals);
  Status Replace(Slot& slot, StopSignals* signals);

  const Config config;
  Announcer* const announcer;
  const PlannerChoice planner;
  SteadyClock clock;
  std::vector<std::unique_ptr<Slot>> slots;  // the router first
  int lifeline[2] = {-1, -1};
  int http_fd = -1;
  int workers_fd = -1;
  int grpc_fd = -1;  // for clients
  int admin_fd = -1;
  std::string http;
  std::string grpc;
  std::string admin;
  std::string workers;
  bool starting = true;  // a death is an error during the start
  bool reload = false;
  Status fatal;  // a process died too often; returned by every later Tend
};

Supervisor::Supervisor(const Config& config, Announcer* announcer, PlannerChoice planner)
    : impl_(std::make_unique<Impl>(config, announcer, planner)) {}

Supervisor::~Supervisor() {
  impl_->slots.clear();
  for (const int fd : {impl_->lifeline[0], impl_->lifeline[1], impl_->http_fd, impl_->workers_fd,
                       impl_->grpc_fd, impl_->admin_fd}) {
    if (fd >= 0) close(fd);
  }
}

const std::string& Supervisor::http_address() const { return impl_->http; }
const std::string& Supervisor::grpc_address() const { return impl_->grpc; }
const std::string& Supervisor::admin_address() const { return impl_->admin; }
std::string Supervisor::asked_by() const {
  const auto& router = impl_->slots.front()->child;
  return router == nullptr ? "" : router->Said("asked-by");
}

Status Supervisor::Impl::OpenSockets() {
  if (pipe2(lifeline, O_CLOEXEC) != 0) return Internal(fmt::format("pipe: {}", strerror(errno)));
  AISP_ASSIGN_OR_RETURN(
      http_fd, ListenOn(config.http.address, static_cast<uint16_t>(config.http.port), "--port N"));
  http = HostPort(config.http.address, PortOf(http_fd));
  AISP_RETURN_IF_ERROR(OpenClientGrpc());
  AISP_RETURN_IF_ERROR(OpenAdmin());
  // A fixed port only on request, so that two `aisp up` on one machine do not collide.
  const bool asked = config.router.listen != Config().router.listen;
  const std::string listen = asked ? config.router.listen : "127.0.0.1:0";
  AISP_ASSIGN_OR_RETURN(workers_fd, ListenOn(listen, "--router-listen HOST:PORT"));
  workers = HostPort(SplitHostPort(listen).host, PortOf(workers_fd));
  return {};
}

Status Supervisor::Impl::OpenClientGrpc() {
  const Config::Http& h = config.http;
  if (!h.grpc) return {};
  // If the HTTP port is free to choose, so is this one.
  const int64_t beside = h.port > 0 && h.port < UINT16_MAX ? h.port + 1 : 0;
  const auto port = static_cast<uint16_t>(h.grpc_port < 0 ? beside : h.grpc_port);
  const std::string& address = h.grpc_address.empty() ? h.address : h.grpc_address;
  AISP_ASSIGN_OR_RETURN(grpc_fd, ListenOn(address, port, "--grpc-port N"));
  grpc = HostPort(address, PortOf(grpc_fd));
  return {};
}

Status Supervisor::Impl::OpenAdmin() {
  const Config::Router& r = config.router;
  if (r.admin == "off") return {};
  const int64_t http_port = config.http.port;
  const int64_t beside = http_port > 0 && http_port + 2 <= UINT16_MAX ? http_port + 2 : 0;
  const auto port = static_cast<uint16_t>(r.admin_port < 0 ? beside : r.admin_port);
  AISP_ASSIGN_OR_RETURN(admin_fd, ListenOn(r.admin_address, port, "--router-admin-port N"));
  admin = HostPort(r.admin_address, PortOf(admin_fd));
  return {};
}

void Supervisor::Impl::AddSlots() {
  const auto add = [this](const std::string& role, const std::string& name) {
    auto slot = std::make_unique<Slot>();
    slot->name = name;
    slot->config = config;
    slot->config.role = role;
    slot->config.worker.routers = {workers};
    slot->config.worker.admin_port = 0;
    if (const auto& devices = config.up.devices; role != "router" && !devices.empty())
      slot->config.model.device = devices[(slots.size() - 1) % devices.size()];
    slots.push_back(std::move(slot));
  };
  // Workers on the same device share its memory.
  const auto share = [this] {
    std::map<std::string, int64_t> workers_on;
    for (const auto& slot : slots)
      if (!slot->router()) ++workers_on[slot->config.model.device];
    for (const auto& slot : slots)
      if (!slot->router()) slot->config.engine.pool_sharers = workers_on[slot->config.model.device];
  };
  add("router", "router");
  for (int64_t i = 0; i < config.up.prefill_workers; ++i)
    add("prefill", fmt::format("prefill-{}", i));
  for (int64_t i = 0; i < config.up.decode_workers; ++i) add("decode", fmt::format("decode-{}", i));
  share();
}

// A planner cannot add capacity to workers that share one device.
bool Supervisor::Impl::Plans() const {
  const bool roles = config.up.prefill_workers > 0;
  // The planner's client speaks plain HTTP.
  const bool asks = !admin.empty() && !(config.router.admin == "key" && config.http.tls.on());
  if (!roles || !asks || planner == PlannerChoice::kOff) return false;
  if (planner == PlannerChoice::kOn) return true;
  std::set<std::string> cards;
  for (const auto& slot : slots) {
    const std::string& device = slot->config.model.device;
    if (!slot->router() && device.starts_with("cuda")) cards.insert(device);
  }
  return cards.size() > 1;
}

void Supervisor::Impl::AddPlanner() {
  auto slot = std::make_unique<Slot>();
  slot->name = "planner";
  slot->config = config;
  slot->config.role = "planner";
  slot->config.worker.admin_port = 0;
  slots.push_back(std::move(slot));
}

std::unique_ptr<ChildProcess> Supervisor::Impl::MakeChild(const Slot& slot) const {
  if (slot.planner()) {
    const planner::PlannerOptions options = planner::OptionsOfUp(
        static_cast<int>(config.up.prefill_workers + config.up.decode_workers));
    std::vector<std::string> command = {
        "planner", "--router=http://" + admin, "--no-park",
        fmt::format("--enough={:.0f}", 100 * options.enough),
        fmt::format("--home={}P{}D", options.home->prefill, options.home->decode)};
    if (config.router.admin == "key")
      command.push_back("--key-file=" + config.router.admin_key_file);
    Config child = slot.config;
    child.role = Config().role;  // a setting of servers, not of the planner
    return std::make_unique<ChildProcess>(slot.name, std::move(child),
                                          std::vector<std::pair<std::string, int>>{},
                                          std::move(command));
  }
  // A worker and its successor are registered at the same time for a while, so each generation has
  // its own name.
  const std::string name =
      slot.generation == 0 ? slot.name : fmt::format("{}.{}", slot.name, slot.generation);
  Config child = slot.config;
  if (!slot.router()) child.worker.id = name;
  std::vector<std::pair<std::string, int>> sockets;
  if (slot.router()) sockets = {{"http-fd", http_fd}, {"workers-fd", workers_fd}};
  if (slot.router() && grpc_fd >= 0) sockets.emplace_back("grpc-fd", grpc_fd);
  if (slot.router() && admin_fd >= 0) sockets.emplace_back("admin-fd", admin_fd);
  return std::make_unique<ChildProcess>(name, std::move(child), std::move(sockets));
}

Status Supervisor::Impl::SpawnIn(Slot& slot) {
  slot.restart_at = kNever;
  slot.child = MakeChild(slot);
  return Spawn(slot, *slot.child);
}

Status Supervisor::Impl::Spawn(const Slot& slot, ChildProcess& child) {
  const std::string last_exit = slot.ends_first() ? "" : slot.last_exit;
  AISP_RETURN_IF_ERROR(child.Spawn(lifeline[0], last_exit, clock.Now()));
  if (slot.router()) announcer->Write("router-pid", std::to_string(child.pid()));
  return {};
}

std::string Supervisor::Impl::PollOnce(StopSignals* signals, Instant until) {
  std::vector<pollfd> fds{{signals->signal_fd(), POLLIN, 0}};
  std::vector<ChildProcess*> children;
  for (auto& slot : slots) {
    for (ChildProcess* child : {slot->child.get(), slot->successor.get()}) {
      if (child == nullptr) continue;
      children.push_back(child);
      fds.push_back({child->announce_fd(), POLLIN, 0});
      fds.push_back({child->pidfd(), POLLIN, 0});
    }
    until = std::min(until, slot->restart_at);
  }
  int timeout_ms = -1;
  if (until != kNever) {
    timeout_ms = static_cast<int>(
        std::clamp<int64_t>((until - clock.Now()).count() / 1'000'000 + 1, 0, 60'000));
  }
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return "";
  for (ChildProcess* child : children) child->ReadAnnouncements();
  return (fds[0].revents & POLLIN) != 0 ? signals->WaitFor(0) : std::string();
}

bool Supervisor::Impl::ServedWithout(const Slot& slot) const {
  // Without a planner roles stay as they are, which ends nobody.
  if (slot.planner()) return true;
  if (slot.router()) return false;
  return std::any_of(slots.begin(), slots.end(), [&](const auto& other) {
    return other.get() != &slot && other->config.role == "decode" && other->child->running() &&
           IsReady(*other, *other->child);
  });
}

Status Supervisor::Impl::OnDeath(Slot& slot, const std::string& how) {
  if (starting) {
    return Unavailable(
        fmt::format("{} ended while starting ({}); its message stands above", slot.name, how));
  }
  if (clock.Now() - slot.child->started() > kSettled) slot.quick_deaths = 0;
  ++slot.quick_deaths;
  if (slot.quick_deaths > kMaxQuickDeaths && !ServedWithout(slot)) {
    fatal = Unavailable(fmt::format("{} ended {} times within {} s of its start ({})", slot.name,
                                    slot.quick_deaths, ToSeconds(kSettled), how));
    return fatal;
  }
  const int doubled = std::min(slot.quick_deaths - 1, 16);
  const Duration delay =
      std::min<Duration>(kFirstRestartDelay * (1 << doubled), kLongestRestartDelay);
  slot.restart_at = clock.Now() + delay;
  LogWarning("a process ended, restarting",
             {{"name", slot.child->name()}, {"how", how}, {"delay_ms", ToMs(delay)}});
  return {};
}

Status Supervisor::Impl::Tend() {
  AISP_RETURN_IF_ERROR(fatal);
  for (auto& slot : slots) {
    std::string how, last_exit;
    if (slot->child && slot->child->Reap(&how, &last_exit) && !slot->leaving) {
      slot->last_exit = last_exit;
      AISP_RETURN_IF_ERROR(OnDeath(*slot, how));
    }
    if (slot->successor) slot->successor->Reap(&how, &last_exit);
    if (slot->restart_at != kNever && clock.Now() >= slot->restart_at)
      AISP_RETURN_IF_ERROR(SpawnIn(*slot));
  }
  return {};
}

Status Supervisor::Impl::Await(StopSignals* signals, Instant deadline,
                               const std::function<bool()>& done, std::string_view what) {
  for (;;) {
    AISP_RETURN_IF_ERROR(Tend());
    if (done()) return {};
    if (clock.Now() >= deadline)
      return Fail(Code::kDeadlineExceeded, fmt::format("{} took too long", what));
    const std::string signal = PollOnce(signals, deadline);
    if (signal == StopSignals::kReload) {
      reload = true;
    } else if (!signal.empty()) {
      return Fail(Code::kCancelled, signal);
    }
  }
}

Status Supervisor::Start(StopSignals* signals, Duration timeout) {
  Impl& impl = *impl_;
  const Instant deadline = impl.clock.Now() + timeout;
  AISP_RETURN_IF_ERROR(impl.OpenSockets());
  impl.AddSlots();
  for (auto& slot : impl.slots) AISP_RETURN_IF_ERROR(impl.SpawnIn(*slot));
  const auto all_ready = [&impl] {
    return std::all_of(impl.slots.begin(), impl.slots.end(),
                       [](const auto& slot) { return IsReady(*slot, *slot->child); });
  };
  AISP_RETURN_IF_ERROR(impl.Await(signals, deadline, all_ready, "the start"));
  impl.starting = false;
  if (!impl.Plans()) return {};
  impl.AddPlanner();
  return impl.SpawnIn(*impl.slots.back());
}

Status Supervisor::Impl::Replace(Slot& slot, StopSignals* signals) {
  ++slot.generation;
  slot.successor = MakeChild(slot);
  AISP_RETURN_IF_ERROR(Spawn(slot, *slot.successor));
  const auto up_or_dead = [&slot] {
    return !slot.successor->running() || IsReady(slot, *slot.successor);
  };
  Status ready = Await(signals, clock.Now() + kReplaceTimeout, up_or_dead, slot.successor->name());
  if (!ready || !slot.successor->running()) {
    const std::string name = slot.successor->name();
    slot.successor.reset();
    if (!ready && ready.error().code == Code::kCancelled) return ready;
    return Unavailable(fmt::format("{} did not become ready; {} goes on", name, slot.name));
  }
  if (slot.child->running()) {
    slot.leaving = true;
    slot.child->Signal(SIGTERM);
    const auto ended = [&slot] { return !slot.child->running(); };
    Status left =
        Await(signals, clock.Now() + config.drain_timeout + kPatience, ended, slot.child->name());
    if (!left) LogWarning("killed after its drain time", {{"name", slot.child->name()}});
    slot.leaving = false;
    slot.child = std::move(slot.successor);  // also kills what is left of the old process
    if (!left && left.error().code == Code::kCancelled) return left;
  } else {
    slot.child = std::move(slot.successor);
  }
  slot.restart_at = kNever;
  LogInfo("replaced", {{"name", slot.child->name()}});
  return {};
}

Status Supervisor::Impl::ReplaceAll(StopSignals* signals) {
  LogInfo("every process is replaced, one by one");
  for (auto& slot : slots) {
    Status replaced = Replace(*slot, signals);
    if (!replaced && (!fatal || replaced.error().code == Code::kCancelled)) return replaced;
    if (!replaced) {
      LogError("the rolling restart stops here", {{"error", replaced.error().message}});
      return {};
    }
  }
  LogInfo("every process was replaced");
  return {};
}

Result<std::string> Supervisor::Watch(StopSignals* signals) {
  Impl& impl = *impl_;
  for (;;) {
    const Status done = impl.Await(
        signals, kNever, [&impl] { return impl.reload; }, "");
    impl.reload = false;
    const Status replaced = done ? impl.ReplaceAll(signals) : done;
    if (replaced) continue;
    if (replaced.error().code == Code::kCancelled) return replaced.error().message;
    return tl::unexpected(replaced.error());
  }
}

void Supervisor::Stop(StopSignals* signals) {
  Impl& impl = *impl_;
  const auto stop = [&](bool first, int signal, Duration patience) {
    for (auto& slot : impl.slots) {
      if (slot->ends_first() != first || !slot->child) continue;
      slot->leaving = true;
      slot->restart_at = kNever;
      slot->child->Signal(signal);
    }
    const auto ended = [&] {
      return std::none_of(impl.slots.begin(), impl.slots.end(), [first](const auto& slot) {
        return slot->ends_first() == first && slot->child && slot->child->running();
      });
    };
    return impl.Await(signals, impl.clock.Now() + patience, ended, "stopping").has_value();
  };
  impl.starting = false;
  impl.fatal = {};
  for (auto& slot : impl.slots) {
    slot->successor.reset();
    slot->leaving = true;
    slot->restart_at = kNever;
  }
  for (const bool first : {true, false}) {
    // Slightly longer than the children's own drain time, after which they end by themselves.
    if (!stop(first, SIGTERM, impl.config.drain_timeout + std::chrono::seconds(2)))
      stop(first, SIGKILL, std::chrono::seconds(5));
  }
}

}  // namespace aisp
