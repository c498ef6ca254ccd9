// The story that `aisp up --demo` tells when everything is ready: one streamed chat request against
// the running router, with where it ran, TTFT and its parts, TPOT, and the KV blocks that moved.
#pragma once

#include <string>

#include "common/result.h"

namespace aisp {

// Prints to stdout while the story arrives. `http_address`: host:port of the router.
Status StreamStory(const std::string& http_address);

}  // namespace aisp
