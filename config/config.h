// Config: every setting of every role, as plain data, and the one table that names them.
//
// The table (BindSettings) is the only place where a setting is named: YAML keys, command-line flags, `--help` and
// `--print-config` are all read from it. Order of precedence: default < file < flag. Unknown keys and flags, values of the
// wrong type and values out of range are errors that say where (file:line or flag) and what is allowed.
//
// Plain values; loaded once by main before any thread starts.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/clock.h"
#include "common/result.h"

namespace aisp {

// A size in bytes; written as 1048576, 64KiB, 1.5GiB.
struct ByteSize {
  int64_t bytes = 0;
  friend constexpr bool operator==(const ByteSize&, const ByteSize&) = default;
};

struct Config {
  std::string role = "all";

  struct Model {
    std::string path;  // "": the built-in model
    std::string served_name;
    std::string dtype = "auto";
    std::string kv_dtype = "auto";
    std::string chat_template;
    int64_t max_model_len = 0;
    int64_t threads = 1;
    std::string device = "auto";
    std::string weights;
    std::string quantization = "auto";
    std::string tuning_cache;  // file; empty: none
  } model;

  struct Http {
    std::string address = "127.0.0.1";
    int64_t port = 8080;
    ByteSize max_header{64 << 10};
    ByteSize max_body{16 << 20};
    int64_t max_connections = 4096;
    ByteSize max_unsent{1 << 20};
    Duration read_timeout = std::chrono::seconds(30);
    Duration idle_timeout = std::chrono::seconds(75);
    Duration write_timeout = std::chrono::seconds(30);
    Duration keepalive_comment = std::chrono::seconds(15);
    bool grpc = true;
    std::string grpc_address;  // "": as `address`
    int64_t grpc_port = -1;    // -1: one above `port`; a free one when `port` is 0
    std::vector<std::string> api_keys;
    std::string api_keys_file;
    int64_t max_inflight_per_key = 0;
  } http;

  struct Router {
    std::string listen = "127.0.0.1:8090";
    int64_t max_inflight = 1024;
    Duration default_timeout = std::chrono::seconds(300);
    Duration silence_limit = std::chrono::seconds(2);
    Duration telemetry_interval = std::chrono::milliseconds(50);
    int64_t max_attempts = 4;
    int64_t tokenizer_threads = 1;
    std::string admin = "loopback";
    std::string admin_key_file;
  } router;

  struct Worker {
    std::string id;
    std::vector<std::string> routers{"127.0.0.1:8090"};
    std::string kv_listen = "127.0.0.1:0";
    std::string kv_advertise;
    std::string data_address = "127.0.0.1";
    std::string data_advertise;
    std::vector<std::string> transports{"cuda_ipc", "shm", "tcp"};
    std::string host_id;
    int64_t admin_port = 0;
    std::string admin_address = "127.0.0.1";
    Duration lease = std::chrono::seconds(10);
    Duration step_stall_limit = std::chrono::seconds(10);
  } worker;

  struct Engine {
    int64_t block_tokens = 16;
    ByteSize kv_memory{0};
    int64_t kv_blocks = 0;
    // 0: chosen for the device (server/device_defaults.h).
    int64_t max_batch_tokens = 0;
    int64_t max_prefill_chunk = 0;
    int64_t max_sequences = 0;
    int64_t max_waiting = 1024;
    int64_t watermark_blocks = 2;
    bool prefix_cache = true;
  } engine;

  struct Up {
    int64_t prefill_workers = 1;
    int64_t decode_workers = 1;
    std::vector<std::string> devices;  // of the workers, in turn; empty: model.device
    bool demo = false;
  } up;

  struct Log {
    std::string level = "info";
    std::string format = "text";
  } log;

  Duration drain_timeout = std::chrono::seconds(30);
};

// One setting of a Config, bound to its field.
struct Setting {
  using Field =
      std::variant<std::string*, int64_t*, bool*, ByteSize*, Duration*, std::vector<std::string>*>;
  std::string_view key;   // YAML path: "engine.block_tokens"
  std::string_view flag;  // "--block-size"; "" when only `--engine.block_tokens` exists
  Field field;
  std::string_view help;
  int64_t min = INT64_MIN;  // of integers, sizes (bytes) and durations (ms)
  int64_t max = INT64_MAX;
  std::vector<std::string_view> choices;  // of strings; empty: anything
  bool secret = false;                    // never printed, nor quoted in an error
};

// Every setting, in the order in which it is printed.
std::vector<Setting> BindSettings(Config* config);

// Reads a YAML file into *config. Unknown or repeated key, wrong type, out of range: INVALID_ARGUMENT "file:line: ...".
Status LoadConfigFile(const std::string& path, Config* config);
Status LoadConfigText(const std::string& text, const std::string& name, Config* config);

// Sets one value from text, as a flag does. `origin` is named in errors.
Status SetFromText(const Setting& setting, std::string_view text, std::string_view origin);

// The whole Config as YAML with the help texts as comments. With kShown, loading it again gives the same Config; with kHidden
// (for people) secret settings are left out.
enum class Secrets { kHidden, kShown };
std::string PrintConfig(const Config& config, Secrets secrets = Secrets::kHidden);

}  // namespace aisp
