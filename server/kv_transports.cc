#include "server/kv_transports.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "kvcache/transport/inproc.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"

namespace aisp {
namespace {

Result<std::unique_ptr<KvTransport>> Make(const Config& config, const std::string& name,
                                          KvTransports* out) {
  if (name == "shm") {
    auto shm = std::make_unique<ShmTransport>(ShmTransport::Options{});
    out->shm = shm.get();
    return shm;
  }
  if (name == "tcp") {
    TcpTransport::Options o;
    o.bind_address = config.worker.data_address;
    o.advertise_address = config.worker.data_advertise;
    return std::make_unique<TcpTransport>(o);
  }
  return InvalidArgument(fmt::format("worker.transports: '{}' is unknown; known: shm, tcp", name));
}

}  // namespace

Result<KvTransports> MakeKvTransports(const Config& config, InprocHub* inproc, const Buffer& pool,
                                      const std::function<void()>& wake) {
  KvTransports out;
  if (inproc != nullptr) {
    out.owned.push_back(std::make_unique<InprocTransport>(inproc, InprocTransport::Options{}));
  } else {
    for (const std::string& name : config.worker.transports) {
      AISP_ASSIGN_OR_RETURN(auto transport, Make(config, name, &out));
      out.owned.push_back(std::move(transport));
    }
  }
  const KvRegion region{static_cast<std::byte*>(pool.data()), pool.bytes(), pool.fd()};
  for (auto& transport : out.owned) {
    transport->SetWaker(wake);
    AISP_RETURN_IF_ERROR(transport->Register(region));
    out.ranked.push_back(transport.get());
  }
  std::stable_sort(out.ranked.begin(), out.ranked.end(),
                   [](const KvTransport* a, const KvTransport* b) {
                     return a->capabilities().rank > b->capabilities().rank;
                   });
  return out;
}

}  // namespace aisp
