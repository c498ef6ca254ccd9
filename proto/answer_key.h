// The name of an answer that a decode worker keeps (AnswerKey in worker.proto), as routers and
// workers tell it to each other. Pure function: any thread.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "common/hash.h"

namespace aisp {

// A worker compares tenant, key and index themselves before it gives an answer away.
inline Hash128 AnswerDigest(std::string_view tenant, std::string_view key, uint32_t index) {
  return HashBytes(fmt::format("{} {} {} {}", tenant.size(), tenant, index, key));
}

}  // namespace aisp
