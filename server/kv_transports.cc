#include "server/kv_transports.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "kvcache/transport/inproc.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"

namespace aisp {
namespace {

// The tcp transport takes numbers only: a peer must not depend on its own name service for where KV goes. A name from the
// configuration becomes a number here, once, of the family that data_address binds.
Result<std::string> NumericAddress(const std::string& host, const std::string& bind_address) {
  if (host.empty()) return host;
  addrinfo hints{};
  hints.ai_family = bind_address.find(':') == std::string::npos ? AF_INET : AF_INET6;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0) {
    return InvalidArgument(fmt::format("worker.data_advertise: '{}' cannot be resolved: {}", host,
                                       gai_strerror(error)));
  }
  char number[NI_MAXHOST] = "";
  const int error = getnameinfo(found->ai_addr, found->ai_addrlen, number, sizeof number, nullptr,
                                0, NI_NUMERICHOST);
  freeaddrinfo(found);
  if (error != 0) return Internal(fmt::format("getnameinfo: {}", gai_strerror(error)));
  return std::string(number);
}

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
    AISP_ASSIGN_OR_RETURN(o.advertise_address,
                          NumericAddress(config.worker.data_advertise, config.worker.data_address));
    return std::make_unique<TcpTransport>(o);
  }
  return InvalidArgument(fmt::format("worker.transports: '{}' is unknown; known: shm, tcp", name));
}

}  // namespace

Result<KvTransports> MakeKvTransports(const Config& config, InprocHub* inproc, Device& device,
                                      const Buffer& pool, const std::function<void()>& wake) {
  KvTransports out;
  if (inproc != nullptr) {
    out.owned.push_back(std::make_unique<InprocTransport>(inproc, InprocTransport::Options{}));
  } else {
    for (const std::string& name : config.worker.transports) {
      AISP_ASSIGN_OR_RETURN(auto transport, Make(config, name, &out));
      out.owned.push_back(std::move(transport));
    }
  }
  const KvRegion region{static_cast<std::byte*>(pool.data()), pool.bytes(), pool.fd(),
                        device.info().asynchronous ? &device : nullptr};
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
