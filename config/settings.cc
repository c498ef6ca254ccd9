// The settings of a process. Help texts are sentences for an operator: what it does, and what 0 or
// "" means.
#include "config/settings.h"

namespace aisp {

namespace {

using namespace std::chrono_literals;  // 100ms, 24h

void BindUp(Config::Up& u, SettingTable& t) {
  t.Section("up", "`aisp up`: what it starts on this machine.");
  t.Add("prefill_workers", &u.prefill_workers, "Prefill workers to start.")
      .Flag("--prefill")
      .Range(0, 64);
  t.Add("decode_workers", &u.decode_workers, "Decode workers to start.")
      .Flag("--decode")
      .Range(1, 64);
  t.Add("devices", &u.devices,
        "Devices of the workers in turn, prefill workers first, as cuda:0,cuda:1; empty: all on "
        "model.device.")
      .Flag("--devices")
      .OneOf({"auto", "cpu", "cuda", "cuda:N"});
  t.Add("demo", &u.demo, "Stream one story when everything is ready.").Flag("--demo");
}

void BindTrace(Config::Trace& r, SettingTable& t) {
  t.Section("trace", "Where the time of requests goes (routers; docs/operations.md).");
  t.Add("otlp_endpoint", &r.otlp_endpoint,
        "Where spans are sent by OTLP over gRPC, as localhost:4317 or https://host:4317; empty: "
        "nowhere.")
      .Flag("--otlp-endpoint");
  t.Add("service_name", &r.service_name, "service.name of the spans that are sent.");
  t.Add("sample_percent", &r.sample_percent,
        "Of the requests without a traceparent so many are sent; the flag of a traceparent is "
        "obeyed.")
      .Range(0, 100);
  t.Add("buffer", &r.buffer, "Requests whose spans are kept for `aisp trace`; 0: none.")
      .Flag("--trace-buffer")
      .Range(0, 1 << 20);
  t.Add("nvtx", &r.nvtx,
        "Workers on a GPU: name every step on a profiler's timeline (NVTX), for runs under Nsight.")
      .Flag("--nvtx");
}

void BindLog(Config::Log& l, SettingTable& t) {
  t.Section("log", "Log lines, on standard error.");
  t.Add("level", &l.level, "Least level that is logged.")
      .Flag("--log-level")
      .OneOf({"debug", "info", "warning", "error"});
  t.Add("format", &l.format, "Log lines for people (text) or machines (json).")
      .Flag("--log-format")
      .OneOf({"text", "json"});
}

}  // namespace

SettingTable BindSettings(Config* config) {
  SettingTable t;
  t.Section("", "What this process is and how it ends.");
  t.Add("role", &config->role,
        "What this process is: a router and a worker that does everything, the three roles side by "
        "side, or one of them.")
      .Flag("--role")
      .OneOf({"all", "split", "router", "prefill", "decode"});
  t.Add("drain_timeout", &config->drain_timeout,
        "Time for running requests to finish after SIGTERM, Ctrl-C or a drain; then a decode "
        "worker's go to other decode workers and a router's end.")
      .Flag("--drain-timeout")
      .Range(0ms, 24h);
  BindModelSettings(config->model, t);
  BindHttpSettings(config->http, t);
  BindRouterSettings(config->router, t);
  BindClusterSettings(config->cluster, t);
  BindWorkerSettings(config->worker, t);
  BindEngineSettings(config->engine, t);
  BindKvSettings(config->kv, t);
  BindUp(config->up, t);
  BindTrace(config->trace, t);
  BindLog(config->log, t);
  return t;
}

}  // namespace aisp
