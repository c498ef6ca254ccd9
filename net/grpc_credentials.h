// gRPC credentials from the configuration. For net/ only.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>

#include "net/link_security.h"

namespace aisp {

// For a server that other processes of the cluster dial; `security` may be null.
std::shared_ptr<grpc::ServerCredentials> LinkServerCredentials(const LinkSecurity* security);
// For the dialling side. Adds the expected peer name to `arguments`.
std::shared_ptr<grpc::ChannelCredentials> LinkChannelCredentials(const LinkSecurity* security,
                                                                 grpc::ChannelArguments* arguments);
// Adds the token, if configured, to a call of the dialling side.
void AddToken(const LinkSecurity* security, grpc::ClientContext* context);
// Whether a call carries the configured token.
bool HasToken(const LinkSecurity* security, const grpc::CallbackServerContext& context);

// For a server for clients. INVALID_ARGUMENT names the setting and the file.
Result<std::shared_ptr<grpc::ServerCredentials>> ClientServerCredentials(
    const TlsServerOptions& options);

}  // namespace aisp
