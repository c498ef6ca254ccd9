// The format `hostname`: names of RFC 1123 that may have internationalised labels (xn--, RFC 5890),
// read code point by code point. What such a label may be follows no regular rule short of a table
// of all, so it is asked of libidn2; without that library the format is not enforced. Pure
// functions: any thread.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace aisp {

// Where a name that was begun stands; equal texts are equal places.
struct HostnamePlace {
  int32_t total = 0, in_label = 0;  // bytes read
  bool hyphen = false;              // the last one
  // The label as far as it matters: its first four bytes, where other letters than x and n count as
  // `a`; all of it behind "xn--", in lower case.
  std::string label;

  std::string Key() const;
};

// False where this build has no libidn2.
bool KnowsHostnames();
// Absent where no name goes on so.
std::optional<HostnamePlace> NextOfHostname(const HostnamePlace& at, uint32_t c);
bool IsWholeHostname(const HostnamePlace& at);

}  // namespace aisp
