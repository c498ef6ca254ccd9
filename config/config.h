// Config: every setting of every role, as plain data. config/setting.h has the table of their
// names.
//
// Precedence: default < file < flag. Unknown keys and flags, wrong types and values out of range
// are errors that name the place (file:line or flag) and what is allowed.
//
// Plain values; loaded once by main before any thread starts.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/result.h"
#include "config/setting.h"
#include "net/tls_options.h"

namespace aisp {

struct Config {
  std::string role = "all";

  struct Model {
    std::string path;  // "": the built-in model
    std::string served_name;
    std::string dtype = "auto";
    std::string kv_dtype = "auto";
    std::string chat_template;
    std::string tool_call_parser = "auto";
    std::string reasoning_parser = "auto";
    std::string pooling = "auto";
    int64_t max_model_len = 0;
    int64_t threads = 1;
    std::string device = "auto";
    std::string weights;
    std::string quantization = "auto";
    std::string fp8_activations = "auto";
    bool allow_mixed_precision = false;
    std::vector<std::string> lora_modules;  // NAME=FOLDER
    bool runtime_lora = false;
    int64_t max_loras = 16;
    int64_t max_lora_rank = 128;
    std::string tuning_cache = "auto";
  } model;

  struct Http {
    std::string address = "127.0.0.1";
    int64_t port = 8080;
    int64_t max_header = 64 << 10;        // bytes
    int64_t max_body = 16 << 20;          // bytes
    int64_t max_total_body = 1 << 30;     // bytes
    int64_t max_client_body = 256 << 20;  // bytes
    int64_t max_connections = 4096;
    int64_t max_waiting_per_address = 1024;
    int64_t max_unsent = 1 << 20;  // bytes
    Duration read_timeout = std::chrono::seconds(30);
    Duration idle_timeout = std::chrono::seconds(75);
    Duration write_timeout = std::chrono::seconds(30);
    int64_t min_read_rate = 1024;   // bytes per second
    int64_t max_answer = 64 << 20;  // bytes
    int64_t max_stored_responses = 1000;
    int64_t max_stored_bytes = 64 << 20;
    int64_t max_total_stored = 256 << 20;  // bytes
    Duration keepalive_comment = std::chrono::seconds(15);
    bool grpc = true;
    std::string grpc_address;  // "": as `address`
    int64_t grpc_port = -1;    // -1: one above `port`; a free one when `port` is 0
    TlsServerOptions tls;
    std::vector<std::string> cors_origins;
    std::vector<std::string> api_keys;
    std::string api_keys_file;
    int64_t max_inflight_per_key = 0;
    std::string requests_per_key;  // "60/m"; empty: no bound
    std::string tokens_per_key;
  } http;

  struct Router {
    std::string listen = "127.0.0.1:8090";
    int64_t max_inflight = 1024;
    Duration default_timeout = std::chrono::seconds(300);
    Duration grammar_compile_timeout = std::chrono::seconds(2);
    Duration silence_limit = std::chrono::seconds(2);
    Duration quiet_limit = std::chrono::milliseconds(250);
    Duration telemetry_interval = std::chrono::milliseconds(50);
    Duration slo_ttft = std::chrono::milliseconds(500);
    Duration slo_tpot = std::chrono::milliseconds(50);
    int64_t max_queued = 1024;
    Duration batch_patience = std::chrono::minutes(1);
    Duration best_effort_patience = std::chrono::minutes(3);
    int64_t max_attempts = 4;
    int64_t tokenizer_threads = 1;
    std::string policy = "cost";
    std::string prefix_pulls = "auto";
    std::string admin = "loopback";
    std::string admin_address = "127.0.0.1";
    int64_t admin_port = -1;
    std::string admin_key_file;
  } router;

  ClusterOptions cluster;

  struct Worker {
    std::string id;
    std::vector<std::string> routers{"127.0.0.1:8090"};
    std::string kv_listen = "127.0.0.1:0";
    std::string kv_advertise;
    std::string data_address = "127.0.0.1";
    int64_t data_port = 0;
    int64_t ucx_port = 0;
    std::string data_advertise;
    std::vector<std::string> transports{"cuda_ipc", "shm", "tcp"};
    std::string host_id;
    int64_t admin_port = 0;
    std::string admin_address = "127.0.0.1";
    Duration lease = std::chrono::seconds(10);
    Duration step_stall_limit = std::chrono::seconds(10);
    Duration step_limit = std::chrono::minutes(10);
    std::string step_log;
    Duration answer_window = std::chrono::minutes(5);
    int64_t answer_memory = int64_t{64} << 20;  // bytes
    int64_t max_answers = 16384;
  } worker;

  struct Engine {
    int64_t block_tokens = 0;  // 0: chosen for the device (server/device_defaults.h)
    int64_t kv_memory = 0;     // bytes
    int64_t kv_blocks = 0;
    double gpu_memory_utilization = 0.9;
    int64_t pool_sharers = 1;
    // 0: chosen for the device (server/device_defaults.h).
    int64_t max_batch_tokens = 0;
    int64_t max_prefill_chunk = 0;
    int64_t max_sequences = 0;
    int64_t max_waiting = 1024;
    int64_t watermark_blocks = 2;
    bool prefix_cache = true;
    std::string speculative_config = "off";
    std::string forced_runs = "auto";
  } engine;

  struct Kv {
    std::string verify = "auto";  // auto, on, off
    int64_t host_memory = 0;      // bytes
    std::string disk_path;
    int64_t disk_bytes = int64_t{8} << 30;
  } kv;

  struct Up {
    int64_t prefill_workers = 1;
    int64_t decode_workers = 1;
    std::vector<std::string> devices;  // of the workers, round-robin; empty: model.device
    bool demo = false;
  } up;

  struct Trace {
    std::string otlp_endpoint;  // "": no export
    std::string service_name = "aisp";
    int64_t sample_percent = 100;
    int64_t buffer = 1024;
    bool nvtx = false;
  } trace;

  struct Log {
    std::string level = "info";
    std::string format = "text";
  } log;

  Duration drain_timeout = std::chrono::seconds(30);
};

// All settings of *config, in printing order.
SettingTable BindSettings(Config* config);

// Reads a YAML file into *config. INVALID_ARGUMENT "file:line: ..." for an unknown or repeated key,
// a wrong type or a value out of range.
Status LoadConfigFile(const std::string& path, Config* config);
Status LoadConfigText(const std::string& text, const std::string& name, Config* config);

// The whole Config as YAML with help texts as comments. With kShown, loading it gives the same
// Config; kHidden (for people) omits secret settings.
enum class Secrets { kHidden, kShown };
std::string PrintConfig(const Config& config, Secrets secrets = Secrets::kHidden);

// docs/config.md: Markdown tables of all settings with flags, default, range and meaning.
std::string SettingsAsMarkdown();

}  // namespace aisp
