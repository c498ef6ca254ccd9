// The KV transports of one worker, as its configuration names them, with its pool registered in
// each.
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
  std::vector<WriterWatcher*> watchers;  // among them, for proofs of death
};

// `inproc`: set when the peers live in this process; only that transport is then made. `pool` is
// memory of `device`. `wake` is called from any thread when Poll has something. Lanes that cannot
// reach this device's memory are left out, and the log says so. INVALID_ARGUMENT names an unknown
// transport and the known ones; FAILED_PRECONDITION: none of those named can reach it.
Result<KvTransports> MakeKvTransports(const Config& config, InprocHub* inproc, Device& device,
                                      const Buffer& pool, const std::function<void()>& wake);

}  // namespace aisp
