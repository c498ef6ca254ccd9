#include "proto/inference_call.h"

namespace aisp {

std::string_view RpcInfo::Metadata(std::string_view name) const {
  for (const auto& [key, value] : metadata) {
    if (key == name) return value;
  }
  return "";
}

}  // namespace aisp
