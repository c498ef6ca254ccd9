// The format `hostname`: RFC 1123 names that may have internationalised labels (xn--, RFC 5890),
// read by code point. The valid xn-- labels follow no practical regular rule, so libidn2 decides;
// without it the format is not enforced. Pure functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace aisp {

// The position in a partial name; equal texts have equal positions.
struct HostnamePlace {
  int32_t total = 0, in_label = 0;  // bytes read
  bool hyphen = false;              // the last one
  // The relevant part of the label: its first four bytes, with letters other than x and n as `a`;
  // all of it after "xn--", in lower case.
  std::string label;

  std::string Key() const;
};

// False when this build lacks libidn2.
bool KnowsHostnames();
// nullopt when no name continues like this.
std::optional<HostnamePlace> NextOfHostname(const HostnamePlace& at, uint32_t c);
bool IsWholeHostname(const HostnamePlace& at);

}  // namespace aisp
