// The command line of aisp-loadgen: one table of flags gives parsing, messages and --help. Names
// follow `vllm bench serve` where it has the flag. Pure; prints nothing.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "common/result.h"

namespace aisp::loadgen {

enum class BackendKind { kCompletions, kChat, kGrpc };

// Limits in milliseconds; an absent one does not count.
struct Goodput {
  std::optional<double> ttft_ms, tpot_ms, e2el_ms;
  bool any() const { return ttft_ms || tpot_ms || e2el_ms; }
  // Those that are given, in this order.
  std::vector<std::pair<std::string, double>> Limits() const;
  // "ttft <= 500 ms, tpot <= 50 ms"
  std::string ToString() const;
};

struct Options {
  // The server.
  std::string backend;  // "openai", "openai-chat", "aisp-grpc"; "": by the endpoint
  std::string base_url;
  std::string host = "127.0.0.1";
  int64_t port = 8080;
  bool port_given = false;
  std::string endpoint;
  std::string grpc_address;
  std::string model;
  std::string api_key;
  std::vector<std::pair<std::string, std::string>> headers;
  double wait_ready_s = 0;
  std::string tls_ca, tls_cert, tls_key;  // file names, for https
  bool tls_insecure = false;

  // The prompts.
  std::string dataset = "random";
  std::string dataset_path;
  int64_t num_prompts = 0;           // 0: 1000, or as many as a trace has
  std::optional<int64_t> input_len;  // random: 1024
  std::optional<int64_t> output_len;
  double range_ratio = 0;
  int64_t prefix_len = 0;
  int64_t num_prefixes = 10;
  int64_t repetition_prefix_len = 256;
  int64_t repetition_suffix_len = 256;
  int64_t turns = 1;
  int64_t num_conversations = 0;  // 0: from num_prompts
  double turn_delay_s = 0;
  std::string category;
  double length_scale = 1;
  double time_scale = 1;
  std::string prompt_format = "auto";
  int64_t vocab_size = 0;
  int64_t max_model_len = 0;
  uint64_t seed = 0;
  bool seed_given = false;  // else the program picks a new one
  bool ignore_eos = false;
  std::optional<double> temperature, top_p, min_p, repetition_penalty;
  std::optional<double> frequency_penalty, presence_penalty;
  std::optional<int64_t> top_k;
  std::string extra_body;  // a JSON object

  // The timing.
  std::optional<double> request_rate;  // infinity: all at once
  double burstiness = 1;
  int64_t max_concurrency = 0;  // 0: unlimited
  std::string ramp_up;          // "", "linear", "exponential"
  double ramp_up_start_rps = 0;
  double ramp_up_end_rps = 0;
  bool fixed_schedule = false;
  int64_t num_warmups = 0;
  double cancel_rate = 0;
  std::optional<double> cancel_delay_s;
  double request_timeout_s = 600;
  int64_t retries = 0;
  bool latency_from_sent = false;

  // Multiple runs.
  bool sweep = false;
  std::vector<double> sweep_rates, sweep_concurrency;
  double sweep_duration_s = 30;
  double sweep_start = 1;
  double sweep_precision = 0.05;
  double slo_attainment = 0.9;
  bool stop_when_hopeless = false;  // with --sweep: end a run that cannot meet its limits any more
  std::string ab_url;
  int64_t ab_rounds = 4;
  std::vector<double> ab_gpus;  // GPUs of A and of B; empty: not given
  bool ab_unequal = false;

  // The replay server.
  bool serve_replay = false;
  double replay_ttft_ms = 0;
  double replay_tpot_ms = 0;
  int64_t replay_chunk_tokens = 1;
  int64_t replay_max_streams = 0;
  std::string replay_file;
  int64_t replay_cut_after = 0;

  // The output.
  std::vector<std::string> percentile_metrics = {"ttft", "tpot", "itl", "e2el"};
  std::vector<double> percentiles = {99};
  Goodput goodput;
  bool save_result = false;
  bool save_detailed = false;
  std::string result_dir;
  std::string result_filename;
  std::string csv;
  std::string html;
  std::string compare;
  std::vector<std::pair<std::string, std::string>> metadata;
  std::string label;
  bool no_progress = false;
  bool progress = false;

  bool help = false;
  bool version = false;

  BackendKind kind() const;
  // The path that requests go to.
  std::string target() const;
  bool many_runs() const { return sweep || !sweep_rates.empty() || !sweep_concurrency.empty(); }
};

// Applies the flags to the defaults and checks combinations. INVALID_ARGUMENT names the flag, its
// value and what is accepted.
Result<Options> ParseOptions(std::span<const std::string> args);
std::string HelpText();

// Whether the dataset's requests have times.
bool IsTrace(const std::string& dataset);

// Parses "ttft:500" and so on; separate for tests.
Result<Goodput> ParseGoodput(const std::vector<std::string>& pairs);

// "http://127.0.0.1:8080/prefix" -> host, port, prefix.
struct Url {
  std::string host;
  uint16_t port = 0;
  std::string prefix;  // "" or "/prefix"
  bool tls = false;
  std::string ToString() const;
};
Result<Url> ParseUrl(const std::string& url);

}  // namespace aisp::loadgen
