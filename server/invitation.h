// The lines that `aisp up` prints when it is ready: where it serves, and a curl command that works
// as it stands. Pure.
#pragma once

#include <string>
#include <string_view>

#include "config/config.h"

namespace aisp {

// How a model can be asked: by messages, by text, or, without a tokenizer, by token ids alone. The
// router announces it as `asked-by`.
inline constexpr std::string_view kAskedByMessages = "messages", kAskedByText = "text",
                                  kAskedByIds = "ids";

// "http://" or "https://".
std::string SchemeOf(const Config& config);

// `grpc` and `admin` are empty where they are not served.
std::string Invitation(const Config& config, const std::string& http, const std::string& grpc,
                       const std::string& admin, std::string_view asked_by);

}  // namespace aisp
