// HTTP/2 frames as bytes, for peers that send incomplete messages.
#pragma once

#include <cstdint>
#include <string>

namespace aisp {

namespace half {
inline std::string Frame(char type, char flags, uint32_t stream, const std::string& payload) {
  std::string out;
  for (int i = 2; i >= 0; --i) out += static_cast<char>(payload.size() >> (8 * i));
  out += type;
  out += flags;
  for (int i = 3; i >= 0; --i) out += static_cast<char>(stream >> (8 * i));
  return out + payload;
}

inline std::string Field(const std::string& name, const std::string& value) {
  return std::string(1, '\0') + static_cast<char>(name.size()) + name +
         static_cast<char>(value.size()) + value;
}

}  // namespace half

}  // namespace aisp
