#include "proto/http_exchange.h"

#include "common/strings.h"

namespace aisp {

std::string_view HttpRequest::Header(std::string_view name) const {
  for (const auto& [key, value] : headers) {
    if (EqualsIgnoreCaseAscii(key, name)) return value;
  }
  return {};
}

}  // namespace aisp
