#include "loadgen/run.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <ctime>
#include <fstream>
#include <iterator>
#include <limits>
#include <memory>

#include "common/clock.h"
#include "common/strings.h"
#include "loadgen/arrivals.h"
#include "loadgen/dataset.h"
#include "loadgen/driver.h"
#include "loadgen/grpc_backend.h"
#include "loadgen/http_backend.h"
#include "loadgen/options.h"
#include "loadgen/report.h"
#include "loadgen/target.h"

namespace aisp::loadgen {
namespace {

constexpr int kFailedExit = 1;
constexpr int kUsageExit = 2;
constexpr int kInterruptedExit = 130;

int Complain(const Error& error, int code) {
  fmt::print(stderr, "aisp-loadgen: {}\n", error.message);
  return code;
}

double CpuSeconds(int who) {
  rusage usage{};
  getrusage(who, &usage);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + 1e-6 * static_cast<double>(t.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

// As many sockets as the system allows: a thousand streams are a thousand of them.
int64_t RaiseFileLimit() {
  rlimit limit{};
  getrlimit(RLIMIT_NOFILE, &limit);
  limit.rlim_cur = limit.rlim_max;
  setrlimit(RLIMIT_NOFILE, &limit);
  return static_cast<int64_t>(limit.rlim_max);
}

std::string Now(const char* format) {
  char text[64];
  const std::time_t now = std::time(nullptr);
  std::tm local{};
  localtime_r(&now, &local);
  return {text, std::strftime(text, sizeof(text), format, &local)};
}

std::string HostLine() {
  utsname host{};
  uname(&host);
  return fmt::format("{}, {} {}, {} CPUs", host.nodename, host.sysname, host.release,
                     sysconf(_SC_NPROCESSORS_ONLN));
}

// Quoted where a shell would split it; the key is nobody's business.
std::string CommandLineOf(const std::vector<std::string>& args) {
  std::string out = "aisp-loadgen";
  bool secret = false;
  for (std::string arg : args) {
    if (secret) arg = "***";
    secret = arg == "--api-key";
    if (arg.starts_with("--api-key=")) arg = "--api-key=***";
    if (ToLowerAscii(arg).find("authorization") != std::string::npos) arg = "***";
    out += arg.find_first_of(" {}\"'*") == std::string::npos ? " " + arg : " '" + arg + "'";
  }
  return out;
}

// The timed part: the loop with warm-up and main drivers, the ticker for progress, signals and CPU.
class TimedRun {
 public:
  TimedRun(IoLoop* loop, Backend* backend, const Options& options)
      : loop_(loop), backend_(backend), options_(options) {}

  // Runs the loop to the end of the run. Warm-ups leave notes only.
  void Run(const std::vector<WorkItem>& warmups, const std::vector<WorkItem>& items,
           std::vector<double> at_s, std::vector<RequestRecord>* records);

  bool interrupted() const { return interrupted_; }
  double duration_s() const { return driver_->elapsed_s(); }
  double cpu_share() const { return cpu_s_ / std::max(duration_s(), 1e-9); }
  double peak_cpu_share() const { return std::max(peak_cpu_, cpu_share()); }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  DriverOptions ForDriver(bool warmup) const;
  void StartMain();
  void Tick();
  void CheckSignals();
  void SampleCpu();
  void Progress(bool last);

  IoLoop* loop_;
  Backend* backend_;
  const Options& options_;
  const std::vector<WorkItem>* items_ = nullptr;
  std::vector<double> at_s_;
  std::vector<RequestRecord>* records_ = nullptr;
  std::vector<RequestRecord> warmup_records_;
  std::unique_ptr<Driver> warmup_;
  std::unique_ptr<Driver> driver_;
  std::shared_ptr<IoLoop::Timer> ticker_;
  SteadyClock clock_;
  std::vector<std::string> notes_;
  bool interrupted_ = false;
  double cpu_start_s_ = 0, cpu_s_ = 0, cpu_sampled_s_ = 0, peak_cpu_ = 0;
  Instant sampled_{}, printed_{};
  int64_t printed_chunks_ = 0;
};

constexpr Duration kTick = std::chrono::milliseconds(200);
constexpr Duration kSample = std::chrono::seconds(1);
constexpr Duration kQuietProgress = std::chrono::seconds(5);

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
  if (interrupted_) driver_->Abort("interrupted");
}

void TimedRun::Tick() {
  CheckSignals();
  if (cpu_start_s_ > 0 && clock_.Now() - sampled_ >= kSample) SampleCpu();
  Progress(/*last=*/false);
  ticker_ = loop_->RunAt(clock_.Now() + kTick, [this] { Tick(); });
}

void TimedRun::CheckSignals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  const timespec at_once{};
  if (sigtimedwait(&signals, nullptr, &at_once) < 0) return;
  interrupted_ = true;
  // The next one ends the program as usual.
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
  if (warmup_) warmup_->Abort("interrupted");
  if (cpu_start_s_ > 0) driver_->Abort("interrupted");
}

void TimedRun::SampleCpu() {
  const double cpu_s = CpuSeconds(RUSAGE_THREAD);
  const Instant now = clock_.Now();
  const double wall_s = ToSeconds(now - sampled_);
  // A share of a short time says little.
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

bool IsOfTrace(const Options& o, const std::vector<WorkItem>& items) {
  return items.front().at_s >= 0 && !o.request_rate && o.ramp_up.empty();
}

std::vector<double> Schedule(const Options& o, const std::vector<WorkItem>& items) {
  if (IsOfTrace(o, items)) {
    std::vector<double> at;
    at.reserve(items.size());
    for (const WorkItem& item : items) at.push_back(item.at_s);
    return at;
  }
  return ArrivalTimes({.rate = o.request_rate.value_or(std::numeric_limits<double>::infinity()),
                       .burstiness = o.burstiness,
                       .ramp_up = o.ramp_up,
                       .start_rps = o.ramp_up_start_rps,
                       .end_rps = o.ramp_up_end_rps},
                      items.size(), o.seed);
}

Status WriteFile(const std::string& path, const std::string& text) {
  std::ofstream out(path, std::ios::binary | std::ios::trunc);
  out << text;
  out.close();
  if (!out) return Unavailable(fmt::format("{} cannot be written", path));
  return {};
}

std::string ResultPath(const Options& o, const Environment& e) {
  std::string name = o.result_filename;
  if (name.empty()) {
    std::string model = e.model;
    std::replace(model.begin(), model.end(), '/', '-');
    const std::string rate = o.request_rate ? fmt::format("{:g}qps", *o.request_rate) : "infqps";
    name = fmt::format("aisp-{}-{}-{}.json", rate, model, e.date);
  }
  if (o.result_dir.empty() || name.starts_with('/')) return name;
  return o.result_dir + "/" + name;
}

Status WriteResults(const Options& o, const Summary& summary, const Environment& e,
                    const std::vector<RequestRecord>& records) {
  if (o.save_result) {
    const std::string path = ResultPath(o, e);
    AISP_RETURN_IF_ERROR(WriteFile(path, ResultJson(o, summary, e, records)));
    fmt::print("result: {}\n", path);
  }
  if (!o.csv.empty()) {
    AISP_RETURN_IF_ERROR(WriteFile(o.csv, RequestsCsv(records, o.latency_from_sent)));
    fmt::print("requests: {}\n", o.csv);
  }
  return {};
}

Result<std::string> ReadFile(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return NotFound(fmt::format("{} cannot be read", path));
  return std::string(std::istreambuf_iterator<char>(in), {});
}

// Everything that can go wrong without any load is found before the first request.
Status CheckFiles(const Options& o, const std::string& result_path) {
  for (const std::string& path : {o.save_result ? result_path : std::string(), o.csv}) {
    if (path.empty()) continue;
    std::ofstream out(path, std::ios::app);
    if (!out) return InvalidArgument(fmt::format("{} cannot be written", path));
  }
  return {};
}

struct Prepared {
  std::vector<WorkItem> items;
  std::vector<WorkItem> warmups;
  Target target;
  Environment environment;
  std::string baseline;
};

Result<Prepared> Prepare(const Options& o, const std::vector<std::string>& args) {
  Prepared out;
  std::vector<std::string>& notes = out.environment.notes;
  if (!o.compare.empty()) {
    AISP_ASSIGN_OR_RETURN(out.baseline, ReadFile(o.compare));
  }
  AISP_ASSIGN_OR_RETURN(out.items, LoadDataset(o, &notes));
  const bool made_up =
      o.num_warmups > 0 || std::any_of(out.items.begin(), out.items.end(),
                                       [](const WorkItem& i) { return i.made_up(); });
  const bool grpc = o.kind() == BackendKind::kGrpc;
  AISP_ASSIGN_OR_RETURN(out.target, grpc ? AskGrpcServer(o, made_up) : AskServer(o, made_up));
  Target& target = out.target;
  notes.insert(notes.end(), target.notes.begin(), target.notes.end());
  if (target.max_model_len > 0) {
    const auto frame = static_cast<int64_t>(std::ceil(target.prompts.overhead_tokens));
    ClipToContext(&out.items, target.max_model_len, frame, &notes);
  }
  out.warmups = WarmupItems(out.items, o.num_warmups, o.seed);
  Environment& e = out.environment;
  e.date = Now("%Y%m%d-%H%M%S");
  e.command_line = CommandLineOf(args);
  e.client_host = HostLine();
  e.server =
      grpc ? "grpc://" + o.grpc_address
           : fmt::format("http://{}:{}{}", target.url.host, target.url.port, target.url.prefix);
  e.model = target.model;
  e.target = grpc ? "/aisp.v1.Inference/Generate" : o.target();
  e.max_model_len = target.max_model_len;
  e.of_trace = IsOfTrace(o, out.items);
  AISP_RETURN_IF_ERROR(CheckFiles(o, ResultPath(o, e)));
  const int64_t files = RaiseFileLimit();
  const int64_t streams =
      o.max_concurrency > 0 ? o.max_concurrency : static_cast<int64_t>(out.items.size());
  if (streams + 32 > files) {
    notes.push_back(fmt::format(
        "{} requests may be open at a time, but the limit on open files is {} (ulimit -n)", streams,
        files));
  }
  return out;
}

// The verdict of --compare on stdout; false: texts differ.
Result<bool> Compare(const Options& o, const std::string& baseline,
                     const std::vector<RequestRecord>& records) {
  if (o.compare.empty()) return true;
  const auto compared = CompareTexts(baseline, records);
  if (compared) {
    fmt::print("compare: {}\n", *compared);
    return true;
  }
  const Error error = compared.error().WithContext("--compare " + o.compare);
  if (compared.error().code != Code::kDataLoss) return tl::unexpected(error);
  fmt::print("compare: TEXTS DIFFER: {}\n", compared.error().message);
  return false;
}

Result<int> Report(const Options& o, Prepared* prepared, const TimedRun& run,
                   const std::vector<RequestRecord>& records) {
  Environment& e = prepared->environment;
  e.cpu_share = run.cpu_share();
  e.peak_cpu_share = run.peak_cpu_share();
  e.process_cpu_s = CpuSeconds(RUSAGE_SELF);
  e.notes.insert(e.notes.end(), run.notes().begin(), run.notes().end());
  const Summary summary = Summarize(records, {.percentiles = o.percentiles,
                                              .goodput = o.goodput,
                                              .latency_from_sent = o.latency_from_sent,
                                              .duration_s = run.duration_s()});
  fmt::print("{}{}", Table(o, summary, e), ClientWarnings(o, summary, e));
  for (const std::string& note : run.notes()) fmt::print("note: {}\n", note);
  if (run.interrupted()) {
    const auto unsent = std::count_if(records.begin(), records.end(),
                                      [](const RequestRecord& r) { return r.sent_s < 0; });
    fmt::print("note: interrupted; {} of {} requests were never sent\n", unsent, records.size());
  }
  AISP_RETURN_IF_ERROR(WriteResults(o, summary, e, records));
  AISP_ASSIGN_OR_RETURN(const bool equal, Compare(o, prepared->baseline, records));
  if (!summary.adds_up()) {
    return Internal(
        fmt::format("the counts do not add up: {} completed + {} failed + {} cancelled of {} "
                    "requests; this is a bug of aisp-loadgen",
                    summary.completed, summary.failed, summary.cancelled, summary.requests));
  }
  if (run.interrupted()) return kInterruptedExit;
  return equal && summary.failed == 0 ? 0 : kFailedExit;
}

Result<std::unique_ptr<Backend>> MakeBackend(IoLoop* loop, const Options& o, const Target& target) {
  if (o.kind() == BackendKind::kGrpc) {
    return MakeGrpcBackend(loop, o, target.model, &target.prompts);
  }
  return MakeHttpBackend(loop, o, target.url, target.model, &target.prompts);
}

Result<int> Measure(const Options& o, const std::vector<std::string>& args) {
  AISP_ASSIGN_OR_RETURN(Prepared prepared, Prepare(o, args));
  const Environment& e = prepared.environment;
  fmt::print("{} requests of {} to {}{}, model {}\n", prepared.items.size(), o.dataset, e.server,
             e.target, e.model);
  for (const std::string& note : e.notes) fmt::print("note: {}\n", note);
  std::fflush(stdout);
  std::vector<RequestRecord> records;
  IoLoop loop;
  AISP_ASSIGN_OR_RETURN(const auto backend, MakeBackend(&loop, o, prepared.target));
  TimedRun run(&loop, backend.get(), o);
  run.Run(prepared.warmups, prepared.items, Schedule(o, prepared.items), &records);
  return Report(o, &prepared, run, records);
}

}  // namespace

int RunLoadgen(const std::vector<std::string>& args) {
  const auto options = ParseOptions(args);
  if (!options) return Complain(options.error(), kUsageExit);
  if (options->help) {
    fmt::print("{}", HelpText());
    return 0;
  }
  if (options->version) {
    fmt::print("aisp-loadgen {}\n", AISP_VERSION);
    return 0;
  }
  const auto code = Measure(*options, args);
  if (!code) return Complain(code.error(), kFailedExit);
  return *code;
}

}  // namespace aisp::loadgen
