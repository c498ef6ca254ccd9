// The settings of workers and their engines. Help texts are sentences for an operator: what it
// does, and what 0 or "" means.
#include "config/settings.h"

namespace aisp {

using namespace std::chrono_literals;  // 100ms, 24h

// Long: a table, one statement for each setting.
void BindWorkerSettings(Config::Worker& w, SettingTable& t) {
  t.Section("worker", "A prefill or decode worker as its peers see it.");
  t.Add("id", &w.id,
        "Name of this worker; empty: role, host and random digits. Two processes under one name: "
        "the "
        "second is refused.")
      .Flag("--worker-id");
  t.Add("routers", &w.routers,
        "Routers to register with, host:port,host:port; dns:host:port is every address that the "
        "name has (a headless Service), looked up again every few seconds.")
      .Flag("--routers");
  t.Add("kv_listen", &w.kv_listen,
        "Host:port where decode workers connect (gRPC), for prompts and for prefixes; port 0: a "
        "free one.")
      .Flag("--kv-listen");
  t.Add("kv_advertise", &w.kv_advertise,
        "Prefill: host:port that decode workers should dial; empty: what kv_listen bound.")
      .Flag("--kv-advertise");
  t.Add("data_address", &w.data_address, "Decode: address where the tcp transport receives KV.")
      .Flag("--data-address");
  t.Add("data_port", &w.data_port,
        "Decode: port of the tcp transport; 0: a free one. Set it where a firewall or a "
        "NetworkPolicy stands between the workers.")
      .Flag("--data-port")
      .Range(0, 65535);
  t.Add("ucx_port", &w.ucx_port,
        "Decode: port at data_address where the ucx transport is asked for KV connections; 0: a "
        "free one. UCX may open others beside it (UCX_TLS and its other variables).")
      .Flag("--ucx-port")
      .Range(0, 65535);
  t.Add("data_advertise", &w.data_advertise,
        "Decode: host under which prefill workers reach data_address; empty: the same.")
      .Flag("--data-advertise");
  t.Add("transports", &w.transports,
        "KV transports that may be used: cuda_ipc (between GPUs of one host), shm, ucx (RDMA and "
        "whatever else UCX finds; needs UCX), tcp; those that cannot reach this worker's memory "
        "are left out.")
      .Flag("--transports")
      .OneOf({"cuda_ipc", "shm", "ucx", "tcp"});
  t.Add("host_id", &w.host_id,
        "Equal on workers that can share memory; empty: the machine's boot id.")
      .Flag("--host-id");
  t.Add("admin_address", &w.admin_address,
        "Address of a worker's own /health, /ready and /metrics.")
      .Flag("--admin-host");
  t.Add("admin_port", &w.admin_port,
        "Port of a worker's own /health, /ready and /metrics; 0: a free one.")
      .Flag("--admin-port")
      .Range(0, 65535);
  t.Add("lease", &w.lease, "Decode: how long a prefill worker may write into granted blocks.")
      .Flag("--lease")
      .Range(50ms, 10min);
  t.Add("step_stall_limit", &w.step_stall_limit,
        "A worker with work turns unready when no step ends for so long, unless its own steps make "
        "a longer one plausible.")
      .Range(100ms, 10min);
  t.Add("step_limit", &w.step_limit,
        "The longest that a step may take; a worker in a longer one falls silent and is given up.")
      .Range(1s, 1h);
  t.Add("step_log", &w.step_log,
        "Folder where each worker writes what each of its steps held and how long it took, as "
        "NAME.csv, from which tools/fit_steps.py makes a profile for aisp simulate; empty: none.");
  t.Add("answer_window", &w.answer_window,
        "Decode: how long the answer to a request with an idempotency-key is kept after it ended, "
        "for clients that ask again; 0: it is not kept.")
      .Flag("--answer-window")
      .Range(0ms, 24h);
  t.Add("answer_memory", &w.answer_memory,
        "Decode: bytes of all answers that are kept; beyond it the oldest ones are dropped.")
      .Flag("--answer-memory")
      .Bytes()
      .Range(1 << 16, int64_t{1} << 40);
  t.Add("max_answers", &w.max_answers, "Decode: how many answers are kept at most.")
      .Flag("--max-answers")
      .Range(1, 1 << 16);
}

// Long: a table, one statement for each setting.
void BindEngineSettings(Config::Engine& e, SettingTable& t) {
  t.Section("engine", "A worker's serving loop and its KV pool.");
  t.Add("block_tokens", &e.block_tokens,
        "Tokens in a KV block; on GPUs equal on all workers; 0: 16 on a CPU, 64 on a GPU.")
      .Flag("--block-size")
      .OneOf({"0", "16", "32", "64", "128"});
  t.Add("kv_memory", &e.kv_memory,
        "Bytes of a worker's KV pool; 0: on a CPU a quarter of the free memory, on a GPU what is "
        "left of it.")
      .Flag("--kv-memory")
      .Bytes()
      .Range(0, 4096 * kGiB);
  t.Add("kv_blocks", &e.kv_blocks, "Blocks of a worker's KV pool; 0: as kv_memory says.")
      .Flag("--kv-blocks")
      .Range(0, INT32_MAX);
  t.Add(
       "gpu_memory_utilization", &e.gpu_memory_utilization,
       "Part of a GPU's memory that all workers on it may use for weights, buffers and KV; what is "
       "left after the weights is the KV pool.")
      .Flag("--gpu-memory-utilization")
      .Range(0, 1);
  t.Add("pool_sharers", &e.pool_sharers,
        "Workers that share this machine's memory or this GPU, each taking an equal part for its "
        "KV pool; aisp up sets it.")
      .Range(1, 64);
  t.Add("max_batch_tokens", &e.max_batch_tokens,
        "Token budget of one step (decodes and prefill chunks together); 0: 512 on a CPU, 2048 on "
        "a GPU.")
      .Flag("--max-batch-tokens")
      .Range(0, 65536);
  t.Add("max_prefill_chunk", &e.max_prefill_chunk,
        "Prompt tokens of one sequence in one step; 0: 256 on a CPU, 2048 on a GPU.")
      .Flag("--max-prefill-chunk")
      .Range(0, 65536);
  t.Add("max_sequences", &e.max_sequences,
        "Sequences that run at once; 0: 64 on a CPU, 256 on a GPU.")
      .Flag("--max-num-seqs")
      .Range(0, 4096);
  t.Add("max_waiting", &e.max_waiting,
        "Sequences that a worker holds, waiting ones included; more are refused.")
      .Flag("--max-waiting")
      .Range(1, 1 << 20);
  t.Add("watermark_blocks", &e.watermark_blocks,
        "Blocks kept free for running sequences when another is admitted.")
      .Range(0, 1 << 20);
  t.Add("prefix_cache", &e.prefix_cache,
        "Keep the KV of finished prompts and reuse equal prefixes.")
      .Flag("--prefix-cache");
  t.Add("speculative_config", &e.speculative_config,
        "Speculative decoding, in vLLM's keys: {\"method\": \"suffix\", "
        "\"num_speculative_tokens\": 8}; off: none. Methods: ngram, suffix, draft_model, "
        "eagle3, medusa and mtp; the \"model\" of the last four is a folder or the name of one "
        "beside the served model, and mtp without one uses the served checkpoint's own layer. "
        "\"quantization\": that checkpoint's weights on a GPU: none, fp8 or nvfp4 as "
        "model.quantization; without it as the target's, but fp8 where those are not quantised. "
        "\"draft_vocab_size\": draft_model drafts only tokens with smaller ids than this (frequent "
        "ones have small ids), which takes less time; any without it. "
        "\"prompt_features\": how many of a prompt's last positions eagle3, medusa and mtp see, "
        "whoever computes it; 64 without it.")
      .Flag("--speculative-config")
      .Json();
  t.Add("forced_runs", &e.forced_runs,
        "Propose the tokens that a constrained answer must go on with (names of a schema, literal "
        "parts of a call), so that a step brings several of them. auto: on a CPU; on a GPU a "
        "near-tie between two tokens may then fall the other way.")
      .Flag("--forced-runs")
      .OneOf({"auto", "on", "off"});
}

void BindKvSettings(Config::Kv& k, SettingTable& t) {
  t.Section(
      "kv",
      "Checks of KV that comes from other workers, and where a worker keeps prefixes that its "
      "KV pool has no room for.");
  t.Add("verify", &k.verify,
        "Check every block that a prefill worker wrote before it is used; one that is not what was "
        "written is computed again. auto: where the pool is in host memory (on a CPU).")
      .Flag("--kv-verify")
      .OneOf({"auto", "on", "off"});
  t.Add("host_memory", &k.host_memory,
        "Bytes of host memory for prefix blocks, of each worker (pinned, on a GPU); 0: none.")
      .Flag("--kv-host-memory")
      .Bytes()
      .Range(0, 65536 * kGiB);
  t.Add("disk_path", &k.disk_path,
        "Folder where each worker keeps prefix blocks in a file of its own, mode 0600, which it "
        "finds again after a restart; empty: none.")
      .Flag("--kv-disk-path");
  t.Add("disk_bytes", &k.disk_bytes, "Bytes of that file, taken at the first start.")
      .Flag("--kv-disk-bytes")
      .Bytes()
      .Range(1 << 20, 65536 * kGiB);
}

}  // namespace aisp
