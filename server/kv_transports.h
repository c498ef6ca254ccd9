// The KV transports of a worker as configured, with its pool registered in each.
#pragma once

#include <functional>
#include <memory>
#include <vector>

#include "config/config.h"
#include "kernels/device/buffer.h"
#include "kvcache/transport/kv_transport.h"
#include "kvcache/transport/peer_death.h"

namespace aisp {

class InprocHub;

struct KvTransports {
  std::vector<std::unique_ptr<KvTransport>> owned;
  std::vector<KvTransport*> ranked;      // fastest first
  std::vector<WriterWatcher*> watchers;  // of these transports, to prove that a writer is dead
};

// `inproc`: if set, peers live in this process and it is the only transport. `pool`: memory of
// `device`. `wake`: called on any thread when Poll has work. Transports that cannot reach the
// device's memory are logged and omitted. INVALID_ARGUMENT: unknown name; FAILED_PRECONDITION: none
// is usable.
Result<KvTransports> MakeKvTransports(const Config& config, InprocHub* inproc, Device& device,
                                      const Buffer& pool, const std::function<void()>& wake);

}  // namespace aisp
