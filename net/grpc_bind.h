// Why a gRPC server could not bind. Any thread; it tries the address once itself.
#pragma once

#include <string>
#include <string_view>

#include "common/result.h"

namespace aisp {

// gRPC only says that it could not bind; the operating system says why. ALREADY_EXISTS when the
// port is taken; `choose` says how another one is chosen: "--grpc-port N".
Error BindError(const std::string& address, std::string_view choose);

}  // namespace aisp
