// Workers and requests for tests of policies: idle and ready, with default costs unless a test sets
// others.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "router/policy.h"

namespace aisp {

// A decode worker on the host "host": 16 rows, 1,000 free blocks, 128 KiB of KV per token.
inline WorkerView Decode(std::string_view id) {
  WorkerView w;
  w.worker_id = id;
  w.host_id = "host";
  w.available = true;
  w.max_rows = 16;
  w.free_blocks = 1000;
  w.total_blocks = 1000;
  w.kv_bytes_per_token = 128 * 1024;
  return w;
}

inline WorkerView Prefill(std::string_view id) {
  WorkerView w = Decode(id);
  w.prefill = true;
  return w;
}

// A prompt of `tokens` tokens, for a model of 32 layers.
inline RequestSummary Request(int32_t tokens) {
  RequestSummary r;
  r.tokens = tokens;
  r.num_layers = 32;
  return r;
}

// The placement of the request by the policy `policy` with its defaults.
inline Result<Placement> Pick(std::string_view policy, const RequestSummary& request,
                              std::span<const WorkerView> workers) {
  PolicyOptions options;
  options.name = policy;
  return (*MakeRoutingPolicy(options))->Pick(request, workers);
}

}  // namespace aisp
