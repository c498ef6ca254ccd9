// "host:port" as addresses are written for people and in URLs. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace aisp {

// An IPv6 number stands in brackets: "[::1]:80" of "::1" and of "[::1]".
std::string HostPort(std::string_view host, int64_t port);
// "::1" of "[::1]", any other host as it is.
std::string_view WithoutBrackets(std::string_view host);

// Views of the text that was split.
struct SplitAddress {
  std::string_view host;                 // with its brackets, if it has any
  std::optional<std::string_view> port;  // behind the colon: not checked, may be empty
};
// "[::1]" and "80" of "[::1]:80". A bare IPv6 number ("::1") has no port.
SplitAddress SplitHostPort(std::string_view address);

}  // namespace aisp
