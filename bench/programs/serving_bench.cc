// Client-side measurements of a whole deployment on this machine, as ratios within one run: many
// streams against one, a cached prompt against a cold one, disaggregated against one process; time
// until ready, and the memory of an idle worker. Real processes of the built binary with the
// built-in model, over HTTP on loopback.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <functional>
#include <future>
#include <string>
#include <vector>

#include "bench/programs/report.h"
#include "common/check.h"
#include "tests/e2e/client.h"
#include "tests/e2e/cluster.h"

namespace aisp::e2e {
namespace {

using Steady = std::chrono::steady_clock;

double Seconds(Steady::duration d) { return std::chrono::duration<double>(d).count(); }

double Median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

// Greedy answers do not stop at random: every stream has exactly `tokens` tokens.
struct Shape {
  std::string prompt;
  int tokens = 200;
  std::string route;
};

struct Timed {
  double ttft_s = 0;
  double total_s = 0;
  int tokens = 0;
};

Timed Run(const std::string& http, const Shape& shape) {
  HttpClient client = Connect(http);
  const Json body = {
      {"prompt", shape.prompt}, {"temperature", 0}, {"max_tokens", shape.tokens},
      {"ignore_eos", true},     {"stream", true},   {"stream_options", {{"include_usage", true}}}};
  HttpHeaders headers = {{"content-type", "application/json"}};
  if (!shape.route.empty()) headers.emplace_back("x-aisp-prefill", shape.route);
  const auto begin = Steady::now();
  const auto head = client.Open("POST", "/v1/completions", body.dump(), headers);
  AISP_CHECK_MSG(head && head->status == 200,
                 head ? std::to_string(head->status) : head.error().message);
  Timed out;
  for (;;) {
    const auto event = client.NextEvent();
    AISP_CHECK_MSG(event.has_value(), event ? "" : event.error().message);
    if (!*event || (*event)->data == "[DONE]") break;
    if (out.ttft_s == 0) out.ttft_s = Seconds(Steady::now() - begin);
    const Json data = Json::parse((*event)->data);
    if (data.contains("usage") && data["usage"].is_object())
      out.tokens = data["usage"]["completion_tokens"];
  }
  out.total_s = Seconds(Steady::now() - begin);
  AISP_CHECK_MSG(out.tokens == shape.tokens,
                 fmt::format("{} tokens came, {} were asked for", out.tokens, shape.tokens));
  return out;
}

// A prompt of about `words` words, unique to this run.
std::string FreshPrompt(int words) {
  static int counter = 0;
  std::string out = fmt::format("Story number {}:", ++counter);
  static const char* const kWords[] = {"a",   "fox", "and", "the", "river",
                                       "met", "an",  "old", "owl", "near"};
  for (int i = 0; i < words; ++i) out += fmt::format(" {}", kWords[(i * 7 + counter) % 10]);
  return out;
}

double TokensPerSecond(const std::string& http, int streams, int tokens, const std::string& route) {
  std::vector<std::future<Timed>> runs;
  runs.reserve(static_cast<size_t>(streams));
  const auto begin = Steady::now();
  for (int i = 0; i < streams; ++i) {
    runs.push_back(
        std::async(std::launch::async, Run, http, Shape{FreshPrompt(20), tokens, route}));
  }
  int total = 0;
  for (auto& run : runs) total += run.get().tokens;
  return total / Seconds(Steady::now() - begin);
}

double MedianTtft(const std::function<Timed()>& run, int times) {
  std::vector<double> values;
  values.reserve(static_cast<size_t>(times));
  for (int i = 0; i < times; ++i) values.push_back(run().ttft_s);
  return Median(values) * 1e3;
}

int64_t ResidentKiB(pid_t pid) {
  std::ifstream in(fmt::format("/proc/{}/status", pid));
  for (std::string line; std::getline(in, line);) {
    if (line.starts_with("VmRSS:")) return std::atoll(line.c_str() + 6);
  }
  return 0;
}

void StreamsAgainstOne(const std::string& http) {
  TokensPerSecond(http, 2, 50, "");  // warm-up
  const double one = Median({TokensPerSecond(http, 1, 300, ""), TokensPerSecond(http, 1, 300, ""),
                             TokensPerSecond(http, 1, 300, "")});
  const double many =
      Median({TokensPerSecond(http, 16, 300, ""), TokensPerSecond(http, 16, 300, ""),
              TokensPerSecond(http, 16, 300, "")});
  ReportBench("serving.tokens_per_s.1_stream", one, "tokens/s");
  ReportBench("serving.tokens_per_s.16_streams", many, "tokens/s");
  ReportBench("serving.16_streams_over_1", many / one, "ratio", AtLeast(4.0));
}

void CachedAgainstCold(const std::string& http) {
  const auto cold = [&] { return Run(http, {FreshPrompt(1200), 4, "local"}); };
  const std::string again = FreshPrompt(1200);
  Run(http, {again, 4, "local"});
  const double cold_ms = MedianTtft(cold, 7);
  const double cached_ms = MedianTtft([&] { return Run(http, {again, 4, "local"}); }, 7);
  ReportBench("serving.ttft.cold_1200_words", cold_ms, "ms");
  ReportBench("serving.ttft.cached_1200_words", cached_ms, "ms");
  ReportBench("serving.cached_over_cold_ttft", cached_ms / cold_ms, "ratio");
}

void SplitAgainstOneProcess(const std::string& split) {
  Process all({"serve", "--role=all", "--port=0", "--log-level=warning"});
  const std::string one = all.Await("http");
  AISP_CHECK(Eventually([&] { return Connect(one).Request("GET", "/ready")->status == 200; }));
  Run(one, {FreshPrompt(20), 8, "local"});
  const auto ttft = [](const std::string& http, const char* route) {
    return MedianTtft([&] { return Run(http, {FreshPrompt(1200), 4, route}); }, 7);
  };
  const double split_ttft = ttft(split, "remote");
  const double one_ttft = ttft(one, "local");
  ReportBench("serving.ttft.split", split_ttft, "ms");
  ReportBench("serving.ttft.one_process", one_ttft, "ms");
  ReportBench("serving.split_over_one_process_ttft", split_ttft / one_ttft, "ratio");
  const double split_rate = TokensPerSecond(split, 16, 200, "remote");
  const double one_rate = TokensPerSecond(one, 16, 200, "local");
  ReportBench("serving.split_over_one_process_tokens_per_s", split_rate / one_rate, "ratio");
}

void ReadyTime() {
  std::vector<double> values;
  for (int i = 0; i < 5; ++i) {
    const auto begin = Steady::now();
    Cluster cluster({});
    AISP_CHECK(cluster.AwaitReady());
    values.push_back(Seconds(Steady::now() - begin));
  }
  ReportBench("serving.ready_s", Median(values), "s", AtMost(1.0));
}

void Main() {
  ReadyTime();
  Cluster cluster({});
  AISP_CHECK(cluster.AwaitReady());
  ReportBench("serving.idle_memory.decode_worker",
              static_cast<double>(ResidentKiB(cluster.decode[0]->pid())) / 1024, "MiB");
  ReportBench("serving.idle_memory.prefill_worker",
              static_cast<double>(ResidentKiB(cluster.prefill[0]->pid())) / 1024, "MiB");
  ReportBench("serving.idle_memory.router",
              static_cast<double>(ResidentKiB(cluster.router->pid())) / 1024, "MiB");
  StreamsAgainstOne(cluster.http());
  CachedAgainstCold(cluster.http());
  SplitAgainstOneProcess(cluster.http());
}

}  // namespace
}  // namespace aisp::e2e

int main() { aisp::e2e::Main(); }
