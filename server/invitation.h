// The lines `aisp up` prints when ready: its addresses, and a working curl command. Pure.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"

namespace aisp {

// How a model can be prompted: by messages, by text, or (without a tokenizer) by token ids. The
// router announces it as `asked-by`.
inline constexpr std::string_view kAskedByMessages = "messages", kAskedByText = "text",
                                  kAskedByIds = "ids";

// "http://" or "https://".
std::string SchemeOf(const Config& config);

// `grpc` and `admin` are "" when not served.
std::string Invitation(const Config& config, const std::string& http, const std::string& grpc,
                       const std::string& admin, std::string_view asked_by);

}  // namespace aisp
