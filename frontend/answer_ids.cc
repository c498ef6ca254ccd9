#include "frontend/answer_ids.h"

#include <fmt/format.h>

#include <chrono>
#include <random>

namespace aisp {

std::string NewAnswerId(std::string_view prefix) {
  std::random_device entropy;
  std::string id(prefix);
  for (int i = 0; i < 4; ++i) id += fmt::format("{:08x}", static_cast<uint32_t>(entropy()));
  return id;
}

int64_t UnixTimeS() {
  return std::chrono::duration_cast<std::chrono::seconds>(
             std::chrono::system_clock::now().time_since_epoch())
      .count();
}

}  // namespace aisp
