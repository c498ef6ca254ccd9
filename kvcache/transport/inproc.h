// The inproc transport: pools of one process. Peers find each other in an InprocHub, which they all
// share and which outlives them.
//
// The hub holds each pool's epoch gate; check and copy happen under the pool's lock, so RevokeEpoch
// fences at once.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "kvcache/transport/memory_transport.h"

namespace aisp {

// Thread-safe.
class InprocHub {
 public:
  InprocHub();
  ~InprocHub();
  InprocHub(const InprocHub&) = delete;
  InprocHub& operator=(const InprocHub&) = delete;

 private:
  friend class InprocTransport;
  class Pool;
  std::string Add(const std::shared_ptr<Pool>& pool);
  void Remove(const std::string& descriptor);
  std::shared_ptr<Pool> Find(std::string_view descriptor);

  const std::string nonce_;  // descriptors of other processes are not found here
  std::mutex mutex_;
  uint64_t last_ = 0;
  std::map<std::string, std::shared_ptr<Pool>, std::less<>> pools_;
};

class InprocTransport final : public MemoryTransport {
 public:
  struct Options {
    size_t max_writes = 4096;
  };
  InprocTransport(InprocHub* hub, const Options& options);
  ~InprocTransport() override;

  Status Register(const KvRegion& region) override;
  Result<std::string> Descriptor() override;
  void AllowEpoch(Epoch epoch, std::span<const BlockCopy> allowed) override;
  bool RevokeEpoch(Epoch epoch) override;

 protected:
  Result<std::shared_ptr<Peer>> Open(std::string_view descriptor, Duration timeout) override;

 private:
  class HubPeer;
  InprocHub* const hub_;
  std::shared_ptr<InprocHub::Pool> pool_;
  std::string descriptor_;
};

}  // namespace aisp
