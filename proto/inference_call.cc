#include "proto/inference_call.h"

#include <algorithm>

namespace aisp {

std::string_view RpcInfo::Metadata(std::string_view name) const {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return "";
}

std::optional<Duration> RpcInfo::Timeout(Duration most) const {
  if (deadline == kNever) return std::nullopt;
  return std::clamp(deadline - received, Duration(1), most);
}

}  // namespace aisp
