// The table of settings. Help texts are sentences for an operator: what it does, its unit, what 0 or "" means.
#include "config/config.h"

namespace aisp {
namespace {

constexpr int64_t kGiB = int64_t{1} << 30;
constexpr int64_t kNoMin = INT64_MIN;
constexpr int64_t kNoMax = INT64_MAX;

void BindModel(Config& c, std::vector<Setting>& out) {
  out.push_back({"model.path",
                 "--model",
                 &c.model.path,
                 "Folder of a Hugging Face checkpoint; empty: the built-in story-7m.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"model.served_name",
                 "--served-model-name",
                 &c.model.served_name,
                 "Name that clients use; empty: the folder's name.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"model.dtype",
                 "--dtype",
                 &c.model.dtype,
                 "Weights and matmuls; auto: as the checkpoint.",
                 kNoMin,
                 kNoMax,
                 {"auto", "f32", "bf16"}});
  out.push_back({"model.kv_dtype",
                 "--kv-dtype",
                 &c.model.kv_dtype,
                 "KV cache; auto: as the matmuls. fp8 (e4m3) needs a GPU.",
                 kNoMin,
                 kNoMax,
                 {"auto", "f32", "bf16", "fp8"}});
  out.push_back({"model.chat_template",
                 "--chat-template",
                 &c.model.chat_template,
                 "File with a Jinja chat template; empty: the checkpoint's own.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"model.max_model_len",
                 "--max-model-len",
                 &c.model.max_model_len,
                 "Longest prompt plus answer in tokens; 0: what the model was made for.",
                 0,
                 1 << 24,
                 {}});
  out.push_back({"model.threads",
                 "--threads",
                 &c.model.threads,
                 "CPU threads of one worker's step.",
                 1,
                 1024,
                 {}});
  out.push_back({"model.device",
                 "--device",
                 &c.model.device,
                 "What a worker computes on: cpu, cuda, cuda:N, or auto: a GPU if there is one.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back(
      {"model.weights",
       "--weights",
       &c.model.weights,
       "random:SEED makes weights up, for measuring; the model's folder then needs only a "
       "config.json. Empty: the checkpoint's.",
       kNoMin,
       kNoMax,
       {}});
  out.push_back({"model.tuning_cache",
                 "--tuning-cache",
                 &c.model.tuning_cache,
                 "File that keeps which matrix kernels were fastest on this GPU, so that later "
                 "starts need not measure; "
                 "empty: none.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"model.quantization",
                 "--quantization",
                 &c.model.quantization,
                 "Weights on a GPU; auto: as the checkpoint has them, none: in the matmuls' dtype; "
                 "fp8 and nvfp4 quantise on load.",
                 kNoMin,
                 kNoMax,
                 {"auto", "none", "fp8", "nvfp4"}});
}

void BindHttpGrpc(Config& c, std::vector<Setting>& out) {
  out.push_back({"http.grpc",
                 "--grpc",
                 &c.http.grpc,
                 "Serve gRPC to clients too (aisp.v1.Inference, health, reflection).",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"http.grpc_address",
                 "--grpc-host",
                 &c.http.grpc_address,
                 "Address that the gRPC server for clients binds; empty: as http.address.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back(
      {"http.grpc_port",
       "--grpc-port",
       &c.http.grpc_port,
       "gRPC port for clients; 0: a free one, written to the log; -1: one above http.port.",
       -1,
       65535,
       {}});
}

void BindHttpKeys(Config& c, std::vector<Setting>& out) {
  out.push_back({"http.api_keys",
                 "",
                 &c.http.api_keys,
                 "Keys that clients must send one of, each as KEY or NAME:KEY; empty: everybody is "
                 "served. Never printed; a flag shows them in `ps`, so prefer a file.",
                 kNoMin,
                 kNoMax,
                 {},
                 /*secret=*/true});
  out.push_back({"http.api_keys_file",
                 "--api-keys-file",
                 &c.http.api_keys_file,
                 "File with one KEY or NAME:KEY a line, beside http.api_keys; # begins a comment.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back(
      {"http.max_inflight_per_key",
       "--max-inflight-per-key",
       &c.http.max_inflight_per_key,
       "Requests of one key's tenant that may run or wait at once (429 beyond); 0: no bound.",
       0,
       1 << 20,
       {}});
}

void BindHttp(Config& c, std::vector<Setting>& out) {
  out.push_back({"http.address",
                 "--host",
                 &c.http.address,
                 "Address that the HTTP server binds; 0.0.0.0 opens it to the network.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"http.port",
                 "--port",
                 &c.http.port,
                 "HTTP port; 0: a free one, written to the log.",
                 0,
                 65535,
                 {}});
  out.push_back({"http.max_header",
                 "--max-header-bytes",
                 &c.http.max_header,
                 "Largest request head (431 beyond).",
                 1024,
                 1 << 20,
                 {}});
  out.push_back({"http.max_body",
                 "--max-body-bytes",
                 &c.http.max_body,
                 "Largest request body (413 beyond).",
                 1024,
                 kGiB,
                 {}});
  out.push_back({"http.max_connections",
                 "--max-connections",
                 &c.http.max_connections,
                 "Open HTTP connections; more are refused with 503.",
                 1,
                 1 << 20,
                 {}});
  out.push_back({"http.max_unsent",
                 "",
                 &c.http.max_unsent,
                 "Unsent bytes of one stream before its slow reader is cut.",
                 4096,
                 kGiB,
                 {}});
  out.push_back({"http.read_timeout",
                 "",
                 &c.http.read_timeout,
                 "Time to send a whole request.",
                 100,
                 86'400'000,
                 {}});
  out.push_back({"http.idle_timeout",
                 "",
                 &c.http.idle_timeout,
                 "Keep-alive time between requests.",
                 100,
                 86'400'000,
                 {}});
  out.push_back({"http.write_timeout",
                 "",
                 &c.http.write_timeout,
                 "Time in which a client must take some bytes.",
                 100,
                 86'400'000,
                 {}});
  out.push_back({"http.keepalive_comment",
                 "",
                 &c.http.keepalive_comment,
                 "A silent stream gets an SSE comment this often.",
                 100,
                 86'400'000,
                 {}});
  BindHttpGrpc(c, out);
  BindHttpKeys(c, out);
}

void BindRouter(Config& c, std::vector<Setting>& out) {
  out.push_back({"router.listen",
                 "--router-listen",
                 &c.router.listen,
                 "host:port where workers attach (gRPC); port 0: a free one.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"router.max_inflight",
                 "--max-inflight",
                 &c.router.max_inflight,
                 "Requests in the house; more get 429 with Retry-After.",
                 1,
                 1 << 20,
                 {}});
  out.push_back({"router.default_timeout",
                 "--default-timeout",
                 &c.router.default_timeout,
                 "Deadline of a request that names none.",
                 1,
                 86'400'000,
                 {}});
  out.push_back({"router.silence_limit",
                 "",
                 &c.router.silence_limit,
                 "A worker silent for so long is forgotten.",
                 100,
                 600'000,
                 {}});
  out.push_back({"router.telemetry_interval",
                 "",
                 &c.router.telemetry_interval,
                 "How often workers report.",
                 5,
                 10'000,
                 {}});
  out.push_back({"router.max_attempts",
                 "",
                 &c.router.max_attempts,
                 "Placements of one request when workers die under it.",
                 1,
                 100,
                 {}});
  out.push_back({"router.tokenizer_threads",
                 "",
                 &c.router.tokenizer_threads,
                 "Threads that tokenize prompts.",
                 1,
                 256,
                 {}});
  out.push_back({"router.admin",
                 "--admin",
                 &c.router.admin,
                 "Who may list and drain workers under /admin: programs on this machine, whoever "
                 "sends the key, or nobody.",
                 kNoMin,
                 kNoMax,
                 {"loopback", "key", "off"}});
  out.push_back({"router.admin_key_file",
                 "--admin-key-file",
                 &c.router.admin_key_file,
                 "File whose first line is the admin key (admin: key; aisp drain sends it).",
                 kNoMin,
                 kNoMax,
                 {}});
}

void BindWorker(Config& c, std::vector<Setting>& out) {
  out.push_back({"worker.id",
                 "--worker-id",
                 &c.worker.id,
                 "Name of this worker; empty: role and process id.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.routers",
                 "--routers",
                 &c.worker.routers,
                 "Routers to register with, host:port,host:port.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.kv_listen",
                 "--kv-listen",
                 &c.worker.kv_listen,
                 "Prefill: host:port where decode workers connect (gRPC); port 0: a free one.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.kv_advertise",
                 "--kv-advertise",
                 &c.worker.kv_advertise,
                 "Prefill: host:port that decode workers should dial; empty: what kv_listen bound.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.data_address",
                 "--data-address",
                 &c.worker.data_address,
                 "Decode: address where the tcp transport receives KV.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.data_advertise",
                 "--data-advertise",
                 &c.worker.data_advertise,
                 "Decode: host under which prefill workers reach data_address; empty: the same.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back(
      {"worker.transports",
       "--transports",
       &c.worker.transports,
       "KV transports that may be used: cuda_ipc (between GPUs of one host), shm, tcp; those that "
       "cannot reach this worker's memory are left out.",
       kNoMin,
       kNoMax,
       {}});
  out.push_back({"worker.host_id",
                 "--host-id",
                 &c.worker.host_id,
                 "Equal on workers that can share memory; empty: the machine's boot id.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.admin_address",
                 "--admin-host",
                 &c.worker.admin_address,
                 "Address of a worker's own /health, /ready and /metrics.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"worker.admin_port",
                 "--admin-port",
                 &c.worker.admin_port,
                 "Port of a worker's own /health, /ready and /metrics; 0: a free one.",
                 0,
                 65535,
                 {}});
  out.push_back({"worker.lease",
                 "--lease",
                 &c.worker.lease,
                 "Decode: how long a prefill worker may write into granted blocks.",
                 50,
                 600'000,
                 {}});
  out.push_back({"worker.step_stall_limit",
                 "",
                 &c.worker.step_stall_limit,
                 "A worker with work turns unready when no step ends for so long.",
                 100,
                 600'000,
                 {}});
}

void BindEngine(Config& c, std::vector<Setting>& out) {
  out.push_back({"engine.block_tokens",
                 "--block-size",
                 &c.engine.block_tokens,
                 "Tokens in a KV block; 16, 32, 64 or 128, equal on all workers.",
                 16,
                 128,
                 {}});
  out.push_back({"engine.kv_memory",
                 "--kv-memory",
                 &c.engine.kv_memory,
                 "Bytes of a worker's KV pool; 0: four contexts of the model, at most 1 GiB.",
                 0,
                 kGiB << 12,
                 {}});
  out.push_back({"engine.kv_blocks",
                 "--kv-blocks",
                 &c.engine.kv_blocks,
                 "Blocks of a worker's KV pool; 0: as kv_memory says.",
                 0,
                 INT32_MAX,
                 {}});
  out.push_back({"engine.max_batch_tokens",
                 "--max-batch-tokens",
                 &c.engine.max_batch_tokens,
                 "Token budget of one step (decodes and prefill chunks together); 0: 512 on a CPU, "
                 "2048 on a GPU.",
                 0,
                 65536,
                 {}});
  out.push_back({"engine.max_prefill_chunk",
                 "--max-prefill-chunk",
                 &c.engine.max_prefill_chunk,
                 "Prompt tokens of one sequence in one step; 0: 256 on a CPU, 2048 on a GPU.",
                 0,
                 65536,
                 {}});
  out.push_back({"engine.max_sequences",
                 "--max-num-seqs",
                 &c.engine.max_sequences,
                 "Sequences that run at once; 0: 64 on a CPU, 256 on a GPU.",
                 0,
                 4096,
                 {}});
  out.push_back({"engine.max_waiting",
                 "--max-waiting",
                 &c.engine.max_waiting,
                 "Sequences that a worker holds, waiting ones included; more are refused.",
                 1,
                 1 << 20,
                 {}});
  out.push_back({"engine.watermark_blocks",
                 "",
                 &c.engine.watermark_blocks,
                 "Blocks kept free for running sequences when another is admitted.",
                 0,
                 1 << 20,
                 {}});
  out.push_back({"engine.prefix_cache",
                 "--prefix-cache",
                 &c.engine.prefix_cache,
                 "Keep the KV of finished prompts and reuse equal prefixes.",
                 kNoMin,
                 kNoMax,
                 {}});
}

void BindRest(Config& c, std::vector<Setting>& out) {
  out.push_back({"up.prefill_workers",
                 "--prefill",
                 &c.up.prefill_workers,
                 "aisp up: prefill workers to start.",
                 0,
                 64,
                 {}});
  out.push_back({"up.decode_workers",
                 "--decode",
                 &c.up.decode_workers,
                 "aisp up: decode workers to start.",
                 1,
                 64,
                 {}});
  out.push_back({"up.devices",
                 "--devices",
                 &c.up.devices,
                 "Devices of the workers in turn, prefill workers first, as cuda:0,cuda:1; empty: "
                 "all on model.device.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"up.demo",
                 "--demo",
                 &c.up.demo,
                 "aisp up: stream one story when everything is ready.",
                 kNoMin,
                 kNoMax,
                 {}});
  out.push_back({"log.level",
                 "--log-level",
                 &c.log.level,
                 "Least level that is logged.",
                 kNoMin,
                 kNoMax,
                 {"debug", "info", "warning", "error"}});
  out.push_back({"log.format",
                 "--log-format",
                 &c.log.format,
                 "Log lines for people (text) or machines (json).",
                 {},
                 {},
                 {"text", "json"}});
  out.push_back(
      {"drain_timeout",
       "--drain-timeout",
       &c.drain_timeout,
       "Time for running requests to finish after SIGTERM, Ctrl-C or a drain; then a decode "
       "worker's go to other decode workers and a router's end.",
       0,
       86'400'000,
       {}});
}

}  // namespace

std::vector<Setting> BindSettings(Config* config) {
  std::vector<Setting> out;
  out.push_back({"role",
                 "--role",
                 &config->role,
                 "What this process is: a router and a worker that does everything, the three "
                 "roles side by side, or one of them.",
                 kNoMin,
                 kNoMax,
                 {"all", "split", "router", "prefill", "decode"}});
  BindModel(*config, out);
  BindHttp(*config, out);
  BindRouter(*config, out);
  BindWorker(*config, out);
  BindEngine(*config, out);
  BindRest(*config, out);
  return out;
}

}  // namespace aisp
