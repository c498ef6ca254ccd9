// `aisp up --demo`: sends one streamed chat request to the running router and shows where it ran,
// TTFT and its parts, TPOT, and the KV blocks that moved.
#pragma once

#include <string>

#include "common/result.h"

namespace aisp {

// Prints to stdout while the answer arrives. `http_address`: host:port of the router.
Status StreamStory(const std::string& http_address);

}  // namespace aisp
