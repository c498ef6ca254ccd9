#include "loadgen/timed_run.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdio>

#include "loadgen/metrics.h"

namespace aisp::loadgen {
namespace {

constexpr Duration kTick = std::chrono::milliseconds(200);
constexpr Duration kProbe = std::chrono::milliseconds(20);
constexpr Duration kSample = std::chrono::seconds(1);
constexpr Duration kQuietProgress = std::chrono::seconds(5);

}  // namespace

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

bool TookStopSignal() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  const timespec at_once{};
  if (sigtimedwait(&signals, nullptr, &at_once) < 0) return false;
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  return true;
}

DriverOptions TimedRun::ForDriver(bool warmup) const {
  DriverOptions out;
  out.max_concurrency = options_.max_concurrency;
  out.request_timeout_s = options_.request_timeout_s;
  out.retries = options_.retries;
  out.seed = options_.seed;
  if (warmup) {
    if (out.max_concurrency == 0) out.max_concurrency = 8;
    out.closed_loop = true;
    return out;
  }
  const bool has_times = std::any_of(at_s_.begin(), at_s_.end(), [](double at) { return at > 0; });
  out.closed_loop = out.max_concurrency > 0 && !has_times;
  out.turn_delay_s = options_.turn_delay_s;
  out.needs_ids = needs_ids_;
  out.cancel_rate = options_.cancel_rate;
  out.cancel_delay_s = options_.cancel_delay_s;
  out.keep_texts = options_.save_detailed || !options_.compare.empty();
  return out;
}

void TimedRun::Run(const std::vector<WorkItem>& warmups, const std::vector<WorkItem>& items,
                   std::vector<double> at_s, std::vector<RequestRecord>* records) {
  items_ = &items;
  at_s_ = std::move(at_s);
  records_ = records;
  driver_ = std::make_unique<Driver>(loop_, backend_, ForDriver(false), &items, at_s_, records);
  loop_->Post([this, &warmups] {
    Tick();
    if (warmups.empty()) return StartMain();
    warmup_ = std::make_unique<Driver>(loop_, backend_, ForDriver(true), &warmups,
                                       std::vector<double>(warmups.size(), 0.0), &warmup_records_);
    warmup_->Start([this] {
      const auto failed =
          std::find_if(warmup_records_.begin(), warmup_records_.end(),
                       [](const RequestRecord& r) { return r.status == RequestStatus::kFailed; });
      if (failed != warmup_records_.end()) {
        notes_.push_back(fmt::format("{} of {} warm-ups failed: {}", warmup_->failed(),
                                     warmup_records_.size(), failed->reason));
      }
      StartMain();
    });
  });
  loop_->Run();
  ticker_.reset();
  prober_.reset();
  Progress(/*last=*/true);
}

void TimedRun::StartMain() {
  cpu_start_s_ = cpu_sampled_s_ = CpuSeconds(RUSAGE_THREAD);
  sampled_ = printed_ = clock_.Now();
  driver_->Start([this] {
    SampleCpu();
    cpu_s_ = CpuSeconds(RUSAGE_THREAD) - cpu_start_s_;
    loop_->Stop();
  });
  Probe();
  if (interrupted_) driver_->Abort("interrupted");
}

void TimedRun::Tick() {
  CheckSignals();
  CheckHope();
  if (cpu_start_s_ > 0 && clock_.Now() - sampled_ >= kSample) SampleCpu();
  Progress(/*last=*/false);
  ticker_ = loop_->RunAt(clock_.Now() + kTick, [this] { Tick(); });
}

void TimedRun::Probe() {
  const Instant due = clock_.Now() + kProbe;
  prober_ = loop_->RunAt(due, [this, due] {
    loop_lag_ms_.push_back(std::max(0.0, ToMs(clock_.Now() - due)));
    Probe();
  });
}

double TimedRun::loop_lag_p99_ms() const { return Describe(loop_lag_ms_, {}).p99; }
double TimedRun::loop_lag_max_ms() const { return Describe(loop_lag_ms_, {}).max; }

void TimedRun::CheckSignals() {
  if (!TookStopSignal()) return;
  interrupted_ = true;
  if (warmup_) warmup_->Abort("interrupted");
  if (cpu_start_s_ > 0) driver_->Abort("interrupted");
}

void TimedRun::CheckHope() {
  if (!options_.stop_when_hopeless || stopped_ || cpu_start_s_ == 0) return;
  const int64_t bad = BadSoFar(
      *records_, {.goodput = options_.goodput, .latency_from_sent = options_.latency_from_sent},
      driver_->elapsed_s());
  const auto allowed = (1 - options_.slo_attainment) * static_cast<double>(items_->size());
  if (static_cast<double>(bad) <= allowed) return;
  stopped_ = true;
  driver_->Abort("too many requests have missed their limits");
}

void TimedRun::SampleCpu() {
  const double cpu_s = CpuSeconds(RUSAGE_THREAD);
  const Instant now = clock_.Now();
  const double wall_s = ToSeconds(now - sampled_);
  // CPU shares over short intervals are unreliable.
  if (wall_s >= 0.5) peak_cpu_ = std::max(peak_cpu_, (cpu_s - cpu_sampled_s_) / wall_s);
  cpu_sampled_s_ = cpu_s;
  sampled_ = now;
}

void TimedRun::Progress(bool last) {
  const bool tty = isatty(STDERR_FILENO) != 0;
  if (options_.no_progress || (!tty && !options_.progress) || cpu_start_s_ == 0) return;
  if (last && tty) {
    fmt::print(stderr, "\r\033[K");
    return;
  }
  const double since_s = ToSeconds(clock_.Now() - printed_);
  if (last || since_s < ToSeconds(tty ? kSample : kQuietProgress)) return;
  const auto rate = static_cast<double>(driver_->chunks() - printed_chunks_) / since_s;
  printed_ = clock_.Now();
  printed_chunks_ = driver_->chunks();
  fmt::print(stderr, "{}{:6.0f} s  {}/{} ended  {} in flight  {} failed  {:.0f} chunks/s{}",
             tty ? "\r\033[K" : "", driver_->elapsed_s(), driver_->ended(), items_->size(),
             driver_->in_flight(), driver_->failed(), rate, tty ? "" : "\n");
  std::fflush(stderr);
}

}  // namespace aisp::loadgen
