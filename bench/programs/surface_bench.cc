// Cost of everything but the engine: CPU per token of router, HTTP and gRPC; tokens/s through the
// router compared with the engine alone; requests/s of one-token completions; added latency; and
// the memory of a waiting stream. Real processes of the built binary with the built-in model,
// loaded by aisp-loadgen over HTTP on loopback.
//
// CPU time is read from the scheduler (/proc/<pid>/task/*/schedstat). The thread of a worker that
// plans and computes steps is the engine; all other threads of the worker, and all of the router,
// are the surface.
#include <fmt/format.h>
#include <sys/types.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "bench/programs/loadgen_run.h"
#include "bench/programs/report.h"
#include "common/check.h"
#include "common/clock.h"
#include "engine/engine.h"
#include "engine/model_executor.h"
#include "kernels/cpu/cpu_device.h"
#include "kernels/cpu/cpu_ops.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

namespace fs = std::filesystem;
using Steady = std::chrono::steady_clock;

double Seconds(Steady::duration d) { return std::chrono::duration<double>(d).count(); }

// Nearest rank.
double Percentile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const auto at = static_cast<size_t>(p * static_cast<double>(values.size()));
  return values[std::min(at, values.size() - 1)];
}

// CPU seconds of all threads of a process except the engine's.
double SurfaceCpuSeconds(pid_t pid) {
  double total = 0;
  for (const auto& task : fs::directory_iterator(fmt::format("/proc/{}/task", pid))) {
    std::string name;
    std::getline(std::ifstream(task.path() / "comm"), name);
    if (name.starts_with("engine-")) continue;
    double on_cpu_ns = 0;
    std::ifstream(task.path() / "schedstat") >> on_cpu_ns;
    total += on_cpu_ns * 1e-9;
  }
  return total;
}

double ResidentKiB(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) return std::atof(line.c_str() + 6);
  }
  return 0;
}

// The engine alone in this process, on one thread: `streams` sequences that decode together.
double EngineTokensPerSecond(int streams, int prompt_tokens, int new_tokens) {
  const auto device = MakeCpuDevice();
  auto ops = MakeCpuOps({.threads = 1});
  AISP_CHECK(ops.has_value());
  ModelExecutorOptions options;
  options.max_slots = streams;
  options.kv_bytes = size_t{256} << 20;
  auto executor = ModelExecutor::Create(std::string(AISP_SOURCE_DIR) + "/models/story-7m", options,
                                        *device, **ops);
  AISP_CHECK_MSG(executor.has_value(), executor ? "" : executor.error().message);
  SteadyClock clock;
  EngineOptions engine_options;
  engine_options.limits.max_sequences = streams;
  Engine engine(engine_options, executor->get(), &clock, nullptr);
  for (int i = 0; i < streams; ++i) {
    SequenceRequest request;
    for (int t = 0; t < prompt_tokens; ++t) request.tokens.push_back(100 + (i * 31 + t * 7) % 3000);
    request.prompt_tokens = prompt_tokens;
    request.max_new_tokens = new_tokens;
    request.sampling.temperature = 0;
    AISP_CHECK(engine.Add(std::move(request)).has_value());
  }
  size_t tokens = 0;
  const auto begin = Steady::now();
  while (tokens < static_cast<size_t>(streams) * static_cast<size_t>(new_tokens)) {
    while (engine.CanLaunch()) AISP_CHECK(engine.Launch().has_value());
    AISP_CHECK(engine.InFlight());
    for (const TokenOutput& output : engine.Collect().tokens) tokens += output.token >= 0 ? 1 : 0;
  }
  return static_cast<double>(tokens) / Seconds(Steady::now() - begin);
}

ClusterOptions WithStreams(int streams) {
  return {
      .flags = {"--log-level=warning"},
      .worker_flags = {fmt::format("--engine.max_sequences={}", streams), "--kv-memory=256MiB"}};
}

void TokensThroughRouter(int streams) {
  constexpr int kPrompt = 16;
  constexpr int kTokens = 200;
  Cluster cluster(WithStreams(streams));
  AISP_CHECK(cluster.AwaitReady());
  const std::vector<std::string> flags = {"--dataset-name random",
                                          "--ignore-eos",
                                          fmt::format("--input-len {}", kPrompt),
                                          fmt::format("--output-len {}", kTokens),
                                          fmt::format("--max-concurrency {}", streams),
                                          fmt::format("--num-prompts {}", streams * 3),
                                          "--temperature 0"};
  Load(cluster.http(), flags);  // warm-up
  const auto router_cpu = [&] { return SurfaceCpuSeconds(cluster.router->pid()); };
  const auto workers_cpu = [&] {
    return SurfaceCpuSeconds(cluster.decode[0]->pid()) +
           SurfaceCpuSeconds(cluster.prefill[0]->pid());
  };
  const double router_before = router_cpu();
  const double workers_before = workers_cpu();
  const Json result = Load(cluster.http(), flags);
  const double tokens = result.at("total_output_tokens");
  const std::string name = fmt::format("surface.{}_streams.", streams);
  const double router_us = (router_cpu() - router_before) / tokens * 1e6;
  const double workers_us = (workers_cpu() - workers_before) / tokens * 1e6;
  ReportBench(name + "router_cpu_per_token", router_us, "us");
  ReportBench(name + "cpu_per_token", router_us + workers_us, "us", AtMost(20));
  const double through = result.at("output_throughput");
  const double alone = EngineTokensPerSecond(streams, kPrompt, kTokens);
  ReportBench(name + "tokens_per_s", through, "tokens/s");
  ReportBench(name + "engine_alone_tokens_per_s", alone, "tokens/s");
  ReportBench(name + "over_engine_alone", through / alone, "ratio");
}

void OneTokenCompletions() {
  Cluster cluster(WithStreams(64));
  AISP_CHECK(cluster.AwaitReady());
  const Json result =
      Load(cluster.http(), {"--dataset-name random", "--input-len 4", "--output-len 1",
                            "--max-concurrency 64", "--num-prompts 4000"});
  ReportBench("surface.one_token_requests_per_s", result.at("request_throughput"), "requests/s");
}

// Latency beyond prefill and the first decode step, on one kept connection, one request at a time.
void AddedLatency() {
  Cluster cluster(WithStreams(16));
  AISP_CHECK(cluster.AwaitReady());
  HttpClient client = Connect(cluster.http());
  std::vector<double> added_ms;
  for (int i = 0; i < 600; ++i) {
    const Json body = {
        {"prompt", fmt::format("Story {}", i)}, {"max_tokens", 1}, {"temperature", 0}};
    const auto begin = Steady::now();
    const auto answer = client.Request("POST", "/v1/completions", body.dump(),
                                       {{"content-type", "application/json"}});
    const double total_ms = Seconds(Steady::now() - begin) * 1e3;
    AISP_CHECK_MSG(answer && answer->status == 200, answer ? answer->body : answer.error().message);
    const Json timing = Json::parse(answer->body).at("usage").at("aisp");
    if (i < 100) continue;  // warm-up
    added_ms.push_back(total_ms - timing.at("prefill_ms").get<double>() -
                       timing.at("first_decode_ms").get<double>());
  }
  ReportBench("surface.added_latency.p50", Percentile(added_ms, 0.5), "ms");
  ReportBench("surface.added_latency.p99", Percentile(added_ms, 0.99), "ms");
}

// Streams that wait behind a full engine.
void MemoryOfIdleStreams() {
  constexpr int kStreams = 1000;
  Cluster cluster(WithStreams(1));
  AISP_CHECK(cluster.AwaitReady());
  const Json body = {
      {"prompt", "Once upon a time"}, {"max_tokens", 400}, {"ignore_eos", true}, {"stream", true}};
  const std::string request = fmt::format(
      "POST /v1/completions HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\n"
      "content-length: {}\r\n\r\n{}",
      body.dump().size(), body.dump());
  std::vector<HttpClient> clients;
  const auto open = [&](int n) {
    for (int i = 0; i < n; ++i) {
      clients.push_back(Connect(cluster.http()));
      AISP_CHECK(clients.back().SendRaw(request).has_value());
    }
    AISP_CHECK(Eventually([&] {
      return Metric(cluster.http(), "aisp_active_requests") >= static_cast<double>(clients.size());
    }));
  };
  open(20);  // allocations shared by all streams
  const double router = ResidentKiB(cluster.router->pid());
  const double worker = ResidentKiB(cluster.decode[0]->pid());
  open(kStreams);
  ReportBench("surface.memory_per_idle_stream.router",
              (ResidentKiB(cluster.router->pid()) - router) / kStreams, "KiB");
  ReportBench("surface.memory_per_idle_stream.decode_worker",
              (ResidentKiB(cluster.decode[0]->pid()) - worker) / kStreams, "KiB");
}

void Main() {
  TokensThroughRouter(16);
  TokensThroughRouter(128);
  OneTokenCompletions();
  AddedLatency();
  MemoryOfIdleStreams();
}

}  // namespace
}  // namespace aisp::e2e

int main() { aisp::e2e::Main(); }
