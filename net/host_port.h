// "host:port" as addresses are written for people and in URLs. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace aisp {

// An IPv6 number stands in brackets: "[::1]:80" of "::1" and of "[::1]".
std::string HostPort(std::string_view host, int64_t port);
// "::1" of "[::1]", any other host as it is.
std::string_view WithoutBrackets(std::string_view host);

}  // namespace aisp
