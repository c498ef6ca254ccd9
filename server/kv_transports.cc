#include "server/kv_transports.h"

#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "kvcache/transport/cuda_ipc.h"
#include "kvcache/transport/inproc.h"
#include "kvcache/transport/shm.h"
#include "kvcache/transport/tcp.h"
#include "kvcache/transport/ucx_open.h"
#include "server/process.h"

namespace aisp {
namespace {

// Resolves `host` once to a numeric address of the family that data_address binds. The tcp
// transport takes only numbers: where KV goes must not depend on each peer's name service.
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

template <typename Lane>
std::unique_ptr<KvTransport> Watched(std::unique_ptr<Lane> lane, WriterWatcher** watcher) {
  *watcher = lane.get();
  return lane;
}

// `watcher` stays null if the transport has none.
Result<std::unique_ptr<KvTransport>> Make(const Config& config, const std::string& name,
                                          WriterWatcher** watcher) {
  if (name == "shm") {
    return Watched(std::make_unique<ShmTransport>(ShmTransport::Options{}), watcher);
  }
  if (name == "cuda_ipc") {
    return Watched(std::make_unique<CudaIpcTransport>(CudaIpcTransport::Options{}), watcher);
  }
  if (name == "tcp") {
    TcpTransport::Options o;
    o.bind_address = config.worker.data_address;
    o.port = static_cast<uint16_t>(config.worker.data_port);
    AISP_ASSIGN_OR_RETURN(o.advertise_address,
                          NumericAddress(config.worker.data_advertise, config.worker.data_address));
    return std::make_unique<TcpTransport>(o);
  }
  if (name == "ucx") {
    UcxOptions o;
    o.bind_address = config.worker.data_address;
    o.port = static_cast<uint16_t>(config.worker.ucx_port);
    AISP_ASSIGN_OR_RETURN(o.advertise_address,
                          NumericAddress(config.worker.data_advertise, config.worker.data_address));
    const std::string here = ExecutableFolder();
    const std::string folders[] = {here + "/../lib", here};
    return OpenUcxTransport(o, folders);
  }
  return InvalidArgument(
      fmt::format("worker.transports: '{}' is unknown; known: cuda_ipc, shm, ucx, tcp", name));
}

}  // namespace

Result<KvTransports> MakeKvTransports(const Config& config, InprocHub* inproc, Device& device,
                                      const Buffer& pool, const std::function<void()>& wake) {
  const KvRegion region{static_cast<std::byte*>(pool.data()), pool.bytes(), pool.fd(),
                        device.info().asynchronous ? &device : nullptr, &pool};
  KvTransports out;
  std::vector<std::string> left_out;
  const auto add = [&](std::unique_ptr<KvTransport> transport, WriterWatcher* watcher) -> Status {
    transport->SetWaker(wake);
    Status registered = transport->Register(region);
    if (!registered && registered.error().code == Code::kFailedPrecondition) {
      left_out.push_back(registered.error().message);
      return {};
    }
    AISP_RETURN_IF_ERROR(registered);
    if (watcher != nullptr) out.watchers.push_back(watcher);
    out.ranked.push_back(transport.get());
    out.owned.push_back(std::move(transport));
    return {};
  };
  if (inproc != nullptr) {
    AISP_RETURN_IF_ERROR(
        add(std::make_unique<InprocTransport>(inproc, InprocTransport::Options{}), nullptr));
    return out;
  }
  for (const std::string& name : config.worker.transports) {
    WriterWatcher* watcher = nullptr;
    AISP_ASSIGN_OR_RETURN(auto transport, Make(config, name, &watcher));
    AISP_RETURN_IF_ERROR(add(std::move(transport), watcher));
  }
  if (out.ranked.empty() && !left_out.empty()) {
    return FailedPrecondition(
        fmt::format("worker.transports: none of {} reaches this worker's KV: {}",
                    Join(config.worker.transports, ", "), Join(left_out, "; ")));
  }
  std::stable_sort(out.ranked.begin(), out.ranked.end(),
                   [](const KvTransport* a, const KvTransport* b) {
                     return a->capabilities().rank > b->capabilities().rank;
                   });
  std::vector<std::string> names;
  names.reserve(out.ranked.size());
  for (const KvTransport* lane : out.ranked) names.push_back(lane->capabilities().name);
  LogInfo("KV lanes", {{"device", device.info().kind},
                       {"lanes", Join(names, ", ")},
                       {"left_out", Join(left_out, "; ")}});
  return out;
}

}  // namespace aisp
