#include "loadgen/session.h"

#include <fmt/format.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <ctime>
#include <limits>
#include <memory>

#include "common/strings.h"
#include "loadgen/arrivals.h"
#include "loadgen/dataset.h"
#include "loadgen/grpc_backend.h"
#include "loadgen/http_backend.h"
#include "loadgen/timed_run.h"

namespace aisp::loadgen {
namespace {

// Raises the limit of descriptors to the maximum: each stream needs one.
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

// Quoted for a shell, without the API key.
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
  // The rate is that of conversations; later turns follow their previous answer.
  const std::vector<size_t> first = FirstTurns(items);
  const auto times =
      ArrivalTimes({.rate = o.request_rate.value_or(std::numeric_limits<double>::infinity()),
                    .burstiness = o.burstiness,
                    .ramp_up = o.ramp_up,
                    .start_rps = o.ramp_up_start_rps,
                    .end_rps = o.ramp_up_end_rps},
                   first.size(), o.seed);
  std::vector<double> at(items.size(), 0.0);
  for (size_t i = 0; i < first.size(); ++i) at[first[i]] = times[i];
  return at;
}

Result<std::unique_ptr<Backend>> MakeBackend(IoLoop* loop, const Options& o, const Target& target) {
  if (o.kind() == BackendKind::kGrpc) {
    return MakeGrpcBackend(loop, o, target.model, &target.prompts);
  }
  return MakeHttpBackend(loop, o, target.url, target.model, &target.prompts, target.tls);
}

void NoteFileLimit(const Options& o, size_t requests, std::vector<std::string>* notes) {
  const int64_t files = RaiseFileLimit();
  const int64_t streams =
      o.max_concurrency > 0 ? o.max_concurrency : static_cast<int64_t>(requests);
  if (streams + 32 <= files) return;
  notes->push_back(fmt::format(
      "{} requests may be open at a time, but the limit on open files is {} (ulimit -n)", streams,
      files));
}

bool AllMadeUp(const std::vector<WorkItem>& items) {
  return std::all_of(items.begin(), items.end(), [](const WorkItem& i) { return i.made_up(); });
}

// If the server hit more cached tokens than the prompts share, it has seen them before.
void NoteWarmCache(const Options& o, const Summary& s, std::vector<std::string>* notes) {
  if (s.shareable_tokens < 0 || s.total_input_tokens == 0) return;
  const double slack = 0.05 * static_cast<double>(s.total_input_tokens);
  if (static_cast<double>(s.cached_tokens) <= static_cast<double>(s.shareable_tokens) + slack) {
    return;
  }
  notes->push_back(fmt::format(
      "WARM CACHE: {:.0f} % of the prompt tokens lay in the server's prefix cache, though these "
      "prompts share only {:.0f} %: it has seen this seed ({}) before; leave --seed out for a "
      "fresh one",
      100.0 * static_cast<double>(s.cached_tokens) / static_cast<double>(s.total_input_tokens),
      100.0 * static_cast<double>(s.shareable_tokens) / static_cast<double>(s.total_input_tokens),
      o.seed));
}

void Print(const std::vector<std::string>& notes) {
  for (const std::string& note : notes) fmt::print("note: {}\n", note);
  std::fflush(stdout);
}

}  // namespace

Result<Session> Session::Open(const Options& o, const std::vector<std::string>& args) {
  Session out;
  std::vector<std::string> of_dataset;  // printed when the dataset is loaded for a run
  AISP_ASSIGN_OR_RETURN(const auto items, LoadDataset(o, &of_dataset));
  const bool made_up =
      o.num_warmups > 0 ||
      std::any_of(items.begin(), items.end(), [](const WorkItem& i) { return i.made_up(); });
  const bool grpc = o.kind() == BackendKind::kGrpc;
  AISP_ASSIGN_OR_RETURN(out.target_, grpc ? AskGrpcServer(o, made_up) : AskServer(o, made_up));
  Environment& e = out.base_;
  e.notes = out.target_.notes;
  e.date = Now("%Y%m%d-%H%M%S");
  e.command_line = CommandLineOf(args);
  e.client_host = HostLine();
  e.server = grpc ? "grpc://" + o.grpc_address : out.target_.url.ToString();
  e.model = out.target_.model;
  e.target = grpc ? "/aisp.v1.Inference/Generate" : o.target();
  e.max_model_len = out.target_.max_model_len;
  return out;
}

Result<Outcome> Session::Run(const Options& o) {
  Outcome out;
  out.options = o;
  Environment& e = out.environment = base_;
  std::vector<std::string> notes;
  AISP_ASSIGN_OR_RETURN(auto items, LoadDataset(o, &notes));
  const auto frame = static_cast<int64_t>(std::ceil(target_.prompts.overhead_tokens));
  if (target_.max_model_len > 0) ClipToContext(&items, target_.max_model_len, frame, &notes);
  NoteFileLimit(o, items.size(), &notes);
  e.of_trace = IsOfTrace(o, items);
  if (!std::exchange(said_notes_, true)) {
    const std::string talks =
        o.turns > 1 ? fmt::format(" ({} conversations)", FirstTurns(items).size()) : "";
    fmt::print("{} requests{} of {} to {}{}, model {}, seed {}{}\n", items.size(), talks, o.dataset,
               e.server, e.target, e.model, o.seed, o.seed_given ? "" : " (fresh)");
    Print(base_.notes);
    Print(notes);
  }
  e.notes.insert(e.notes.end(), notes.begin(), notes.end());

  IoLoop loop;
  AISP_ASSIGN_OR_RETURN(const auto backend, MakeBackend(&loop, o, target_));
  const bool ids = o.kind() != BackendKind::kChat && target_.prompts.ids && AllMadeUp(items);
  TimedRun run(&loop, backend.get(), o, o.turns > 1 && ids);
  run.Run(WarmupItems(items, o.num_warmups, o.seed), items, Schedule(o, items), &out.records);

  out.interrupted = run.interrupted();
  out.stopped = run.stopped();
  e.cpu_share = run.cpu_share();
  e.peak_cpu_share = run.peak_cpu_share();
  e.loop_lag_p99_ms = run.loop_lag_p99_ms();
  e.loop_lag_max_ms = run.loop_lag_max_ms();
  e.process_cpu_s = CpuSeconds(RUSAGE_SELF);
  out.summary = Summarize(out.records, {.percentiles = o.percentiles,
                                        .goodput = o.goodput,
                                        .latency_from_sent = o.latency_from_sent,
                                        .duration_s = run.duration_s()});
  if (AllMadeUp(items) && o.turns == 1) {
    out.summary.shareable_tokens =
        SharedPrefixTokens(items) + frame * static_cast<int64_t>(items.size());
  }
  std::vector<std::string> late = run.notes();
  NoteWarmCache(o, out.summary, &late);
  Print(late);
  e.notes.insert(e.notes.end(), late.begin(), late.end());
  return out;
}

}  // namespace aisp::loadgen
