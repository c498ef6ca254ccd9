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

}  // namespace aisp
