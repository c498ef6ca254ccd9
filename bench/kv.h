// `aisp bench kv`: what the KV lanes of this machine carry between two processes, beside memcpy and
// a bare socket. Pools in host memory, or each in a GPU's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "common/result.h"

namespace aisp {

struct KvBenchOptions {
  std::vector<std::string> lanes = {"shm", "ucx", "tcp"};
  std::vector<std::string> library_folders;  // where libaisp_*.so may be, in order
  // The writer's GPU and the owner's, maybe the same; empty: pools in host memory.
  std::vector<int32_t> gpus;
  // How to start the owner's process: this program and its arguments, to which the lane, the pool's
  // size and its GPU ("host": none) are added; it runs ServeKvBench.
  std::vector<std::string> owner;
};

struct KvBenchRow {
  std::string lane;  // with "memcpy" and "socket" beside them
  uint64_t block_kib = 0;
  int32_t blocks = 0;         // of one write, scattered over both pools
  double write_us = 0;        // one write alone, from Write to its completion: the median
  double gb_per_s = 0;        // several under way
  double cpu_us_per_mib = 0;  // of both processes, with several under way
  // gb_per_s over that of memcpy or of a bare connection, and the CPU time of that over this one's:
  // of what was measured in turns with it (a bare connection beside tcp, else memcpy). 0: nothing.
  double of_memcpy = 0;
  double of_socket = 0;
  double by_cpu = 0;
};

struct KvBench {
  std::vector<KvBenchRow> rows;
  std::vector<std::string> left_out;  // lanes that do not work here, and why
};

// UNAVAILABLE: the owner's process did not start.
Result<KvBench> BenchKv(const KvBenchOptions& options);
std::string ToTable(const KvBench& bench);
std::string ToJson(const KvBench& bench);

// The owner's process: offers a pool of `bytes` over `lane`, prints its descriptor as a line on
// stdout, and ends with its input.
Status ServeKvBench(const std::string& lane, uint64_t bytes, int32_t gpu,
                    std::span<const std::string> library_folders);

}  // namespace aisp
