// gRPC's credentials from what is configured. Inside net/ only.
#pragma once

#include <grpcpp/security/credentials.h>
#include <grpcpp/security/server_credentials.h>
#include <grpcpp/server_context.h>
#include <grpcpp/support/channel_arguments.h>

#include <memory>

#include "net/link_security.h"

namespace aisp {

// Of a server that answers other processes of the cluster; `security` may be null.
std::shared_ptr<grpc::ServerCredentials> LinkServerCredentials(const LinkSecurity* security);
// Of one that dials them. Adds the expected name to `arguments`.
std::shared_ptr<grpc::ChannelCredentials> LinkChannelCredentials(const LinkSecurity* security,
                                                                 grpc::ChannelArguments* arguments);
// What the dialling side sends with every call, where there is a token.
void AddToken(const LinkSecurity* security, grpc::ClientContext* context);
// Whether a call carries it.
bool HasToken(const LinkSecurity* security, const grpc::CallbackServerContext& context);

// Of a server for clients. INVALID_ARGUMENT names the setting and the file.
Result<std::shared_ptr<grpc::ServerCredentials>> ClientServerCredentials(
    const TlsServerOptions& options);

}  // namespace aisp
