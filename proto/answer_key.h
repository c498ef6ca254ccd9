// The name of a kept answer (AnswerKey in worker.proto), as used between routers and workers. Pure
// function: any thread.
#pragma once

#include <fmt/format.h>

#include <string_view>

#include "common/hash.h"

namespace aisp {

// Before it returns an answer, a worker compares tenant, key and index themselves.
inline Hash128 AnswerDigest(std::string_view tenant, std::string_view key, uint32_t index) {
  return HashBytes(fmt::format("{} {} {} {}", tenant.size(), tenant, index, key));
}

}  // namespace aisp
