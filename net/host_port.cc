#include "net/host_port.h"

#include <fmt/format.h>

namespace aisp {

std::string HostPort(std::string_view host, int64_t port) {
  const bool number = host.find(':') != std::string_view::npos && host.front() != '[';
  return fmt::format("{}{}{}:{}", number ? "[" : "", host, number ? "]" : "", port);
}

std::string_view WithoutBrackets(std::string_view host) {
  const bool bracketed = host.size() > 1 && host.front() == '[' && host.back() == ']';
  return bracketed ? host.substr(1, host.size() - 2) : host;
}

SplitAddress SplitHostPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos) return {address, std::nullopt};
  const std::string_view host = address.substr(0, colon);
  const bool bare_v6 = host.find(':') != std::string_view::npos && !host.ends_with(']');
  const bool inside = address.find(']', colon) != std::string_view::npos;
  if (bare_v6 || inside) return {address, std::nullopt};
  return {host, address.substr(colon + 1)};
}

}  // namespace aisp
