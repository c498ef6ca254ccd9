// Opens the ucx transport, which is a shared object of its own (libaisp_ucx.so), so that this
// program starts on hosts without UCX. No UCX header here.
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
  // How long a peer may take and say nothing with a write under way before it counts as gone.
  Duration stall_timeout = std::chrono::seconds(10);
  bool checksum = true;  // XXH3 over every piece, checked by the owner
  // Between processes of one host the owner copies out of the writer's pool, which it maps; else
  // UCX carries all bytes.
  bool map_memory = true;
};

// Looks for libaisp_ucx.so in `folders`, in order. NOT_FOUND: it is not there, or UCX is not;
// FAILED_PRECONDITION: it is another build's; UNAVAILABLE: UCX does not work here.
//
// UCX reads its environment when it is loaded. What this transport needs is put there
// (ucx_open.cc), unless it is set: so call this before another thread may read the environment.
Result<std::unique_ptr<KvTransport>> OpenUcxTransport(const UcxOptions& options,
                                                      std::span<const std::string> folders);

// What libaisp_ucx.so exports. Both sides are of one build: `abi` is compared first.
inline constexpr int32_t kUcxAbi = 2;
inline constexpr const char* kUcxAbiSymbol = "aisp_ucx_abi";
inline constexpr const char* kUcxOpenSymbol = "aisp_ucx_open";
using UcxAbiFn = int32_t (*)();
using UcxOpenFn = void (*)(const UcxOptions* options, Result<std::unique_ptr<KvTransport>>* made);

}  // namespace aisp
