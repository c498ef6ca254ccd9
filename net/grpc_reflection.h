// Which gRPC server of this process answers server reflection. gRPC's library adds it to every
// server that a process starts; only the one for clients shall have it. Inside net/ only (it brings
// gRPC).
#pragma once

#include <memory>

#include <grpcpp/impl/server_builder_option.h>

namespace aisp {

enum class Reflection { kOff, kOn };

// For grpc::ServerBuilder::SetOption.
std::unique_ptr<grpc::ServerBuilderOption> ReflectionOption(Reflection wanted);

}  // namespace aisp
