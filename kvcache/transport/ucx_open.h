// Opens the ucx transport, a separate shared object (libaisp_ucx.so), so that this program starts
// on hosts without UCX. No UCX header here.
//
// The object stays open until the process ends. Any thread.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/clock.h"
#include "common/result.h"
#include "kvcache/transport/kv_transport.h"

namespace aisp {

struct UcxOptions {
  std::string bind_address = "127.0.0.1";  // numeric; "0.0.0.0" or "::" for all interfaces
  uint16_t port = 0;                       // 0: any free one
  std::string advertise_address;           // what peers connect to; empty: bind_address
  size_t max_writes = 4096;
  size_t max_writers = 256;
  // Silence with a write in flight after which a peer counts as gone.
  Duration stall_timeout = std::chrono::seconds(10);
  bool checksum = true;  // XXH3 over every piece, checked by the owner
  // Between processes of one host, the owner maps the writer's pool and copies from it; else UCX
  // carries all bytes.
  bool map_memory = true;
};

// Looks for libaisp_ucx.so in `folders`, in order. NOT_FOUND: it or UCX is missing;
// FAILED_PRECONDITION: another build's; UNAVAILABLE: UCX does not work here. Sets environment
// variables that UCX reads when loaded, unless they are set (ucx_open.cc): call this before another
// thread may read the environment.
Result<std::unique_ptr<KvTransport>> OpenUcxTransport(const UcxOptions& options,
                                                      std::span<const std::string> folders);

// Exports of libaisp_ucx.so. Both sides must be of one build: `abi` is compared first.
inline constexpr int32_t kUcxAbi = 2;
inline constexpr const char* kUcxAbiSymbol = "aisp_ucx_abi";
inline constexpr const char* kUcxOpenSymbol = "aisp_ucx_open";
using UcxAbiFn = int32_t (*)();
using UcxOpenFn = void (*)(const UcxOptions* options, Result<std::unique_ptr<KvTransport>>* made);

}  // namespace aisp
