// `aisp bench kv`: throughput of this machine's KV lanes between two processes, compared with
// memcpy, a plain socket or a copy between the GPUs. Pools in host memory, or each in a GPU's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"

namespace aisp {

// What one write carries: so many blocks of this size.
struct KvWriteShape {
  uint64_t block_bytes = 0;
  size_t blocks = 0;
};

// "64x16,256x512": KiB of a block x blocks of a write. INVALID_ARGUMENT: another form, a size that
// is 0, or a write of more than 128 MiB.
Result<std::vector<KvWriteShape>> ParseKvShapes(std::string_view text);

struct KvBenchOptions {
  std::vector<std::string> lanes = {"shm", "ucx", "tcp", "tcp-check"};
  std::vector<KvWriteShape> shapes;          // empty: blocks of Llama-3.1-8B and smaller ones
  std::vector<std::string> library_folders;  // where to look for libaisp_*.so, in order
  // The writer's GPU and the owner's, possibly the same; empty: pools in host memory.
  std::vector<int32_t> gpus;
  // Command of the owner's process, to which lane, pool size and GPU ("host": none) are appended;
  // it runs ServeKvBench.
  std::vector<std::string> owner;
};

struct KvBenchRow {
  std::string lane;  // also "memcpy", "socket" and "peer copy"
  uint64_t block_kib = 0;
  int32_t blocks = 0;         // per write, scattered over both pools
  double write_us = 0;        // one write at a time, from Write to its completion; median
  double gb_per_s = 0;        // with several writes in flight
  double cpu_us_per_mib = 0;  // of both processes, with several writes in flight
  // Ratio of gb_per_s to that of memcpy, of a plain socket or of one contiguous copy between the
  // GPUs, and of the reference's CPU time to this one's. The reference is measured in turns with
  // the lane: a peer copy for cuda_ipc, in host memory a plain socket for tcp, otherwise memcpy. 0:
  // no reference.
  double of_memcpy = 0;
  double of_socket = 0;
  double of_peer = 0;
  double by_cpu = 0;
};

struct KvBench {
  std::vector<KvBenchRow> rows;
  std::vector<std::string> left_out;  // lanes that do not work here, and why
};

// INVALID_ARGUMENT: an unknown lane; UNAVAILABLE: the owner's process did not start.
Result<KvBench> BenchKv(const KvBenchOptions& options);
std::string ToTable(const KvBench& bench);
// {"rows": [...], "left_out": ["lane: why", ...]}, without the braces.
std::string ToJson(const KvBench& bench);

// The owner's process: offers a pool of `bytes` over `lane`, prints its descriptor as one line on
// stdout, and ends at end of input.
Status ServeKvBench(const std::string& lane, uint64_t bytes, int32_t gpu,
                    std::span<const std::string> library_folders);

}  // namespace aisp
