#include "server/router_resolver.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <memory>
#include <utility>

#include "common/log.h"
#include "common/strings.h"
#include "net/host_port.h"

namespace aisp {
namespace {

constexpr std::string_view kScheme = "dns:";

bool IsName(const std::string& router) { return router.starts_with(kScheme); }

std::string TextOf(const sockaddr& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (address.sa_family == AF_INET) {
    inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, text.data(),
              text.size());
    return text.data();
  }
  inet_ntop(AF_INET6, &reinterpret_cast<const sockaddr_in6&>(address).sin6_addr, text.data(),
            text.size());
  return fmt::format("[{}]", text.data());
}

}  // namespace

bool RouterResolver::Needed(const std::vector<std::string>& routers) {
  return std::any_of(routers.begin(), routers.end(), IsName);
}

std::vector<std::string> RouterResolver::WithoutNames(const std::vector<std::string>& routers) {
  std::vector<std::string> out = routers;
  std::erase_if(out, IsName);
  return out;
}

Result<std::vector<std::string>> RouterResolver::SystemLookup(const std::string& host) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (const int error = getaddrinfo(host.c_str(), nullptr, &hints, &found); error != 0)
    return Unavailable(gai_strerror(error));
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::vector<std::string> out;
  // A pod with both IPv4 and IPv6 addresses counts once.
  for (const int family : {AF_INET, AF_INET6}) {
    for (const addrinfo* a = list.get(); a != nullptr && out.size() < 256; a = a->ai_next) {
      if (a->ai_family == family) out.push_back(TextOf(*a->ai_addr));
    }
    if (!out.empty()) break;
  }
  std::sort(out.begin(), out.end());
  out.erase(std::unique(out.begin(), out.end()), out.end());
  return out;
}

RouterResolver::RouterResolver(const std::vector<std::string>& routers,
                               std::function<void(const std::vector<std::string>&)> on_change)
    : RouterResolver(routers, std::move(on_change), Options()) {}

RouterResolver::RouterResolver(const std::vector<std::string>& routers,
                               std::function<void(const std::vector<std::string>&)> on_change,
                               Options options)
    : fixed_(WithoutNames(routers)),
      on_change_(std::move(on_change)),
      options_(std::move(options)),
      stop_(*Waker::Create()) {
  for (const std::string& router : routers) {
    if (IsName(router)) names_.push_back({.text = router.substr(kScheme.size())});
  }
  thread_ = Thread("resolver", [this] { Run(); });
}

RouterResolver::~RouterResolver() {
  stop_.Wake();
  thread_.Join();
}

void RouterResolver::Run() {
  bool unknown = true;
  do {
    bool changed = false;
    unknown = false;
    std::vector<std::string> all = fixed_;
    for (Name& name : names_) {
      changed = Refresh(name) || changed;
      unknown = unknown || name.addresses.empty();
      all.insert(all.end(), name.addresses.begin(), name.addresses.end());
    }
    if (changed) on_change_(all);
  } while (!stop_.Wait(unknown ? options_.interval_unknown : options_.interval));
}

bool RouterResolver::Refresh(Name& name) const {
  const SplitAddress split = SplitHostPort(name.text);
  const std::string host(split.host), port(split.port.value_or("8090"));
  const auto found = options_.lookup(host);
  if (!found || found->empty()) {
    if (!std::exchange(name.warned, true)) {
      LogWarning("the routers' name has no address",
                 {{"name", host},
                  {"error", found ? "no address" : found.error().message},
                  {"kept", Join(name.addresses, ", ")}});
    }
    return false;
  }
  name.warned = false;
  std::vector<std::string> addresses;
  for (const std::string& address : *found)
    addresses.push_back(fmt::format("{}:{}", address, port));
  if (addresses == name.addresses) return false;
  LogInfo("routers", {{"name", host}, {"addresses", Join(addresses, ", ")}});
  name.addresses = std::move(addresses);
  return true;
}

}  // namespace aisp
