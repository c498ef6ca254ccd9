#include "net/grpc_credentials.h"

#include <grpcpp/client_context.h>

namespace aisp {
namespace {

constexpr const char* kHeader = "authorization";
constexpr std::string_view kScheme = "Bearer ";

}  // namespace

std::shared_ptr<grpc::ServerCredentials> LinkServerCredentials(const LinkSecurity* security) {
  if (security == nullptr || !security->tls()) return grpc::InsecureServerCredentials();
  grpc::SslServerCredentialsOptions options(
      GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  options.pem_root_certs = security->ca_pem;
  options.pem_key_cert_pairs.push_back({security->key_pem, security->cert_pem});
  return grpc::SslServerCredentials(options);
}

std::shared_ptr<grpc::ChannelCredentials> LinkChannelCredentials(
    const LinkSecurity* security, grpc::ChannelArguments* arguments) {
  if (security == nullptr || !security->tls()) return grpc::InsecureChannelCredentials();
  arguments->SetSslTargetNameOverride(security->peer_name);
  grpc::SslCredentialsOptions options;
  options.pem_root_certs = security->ca_pem;
  options.pem_private_key = security->key_pem;
  options.pem_cert_chain = security->cert_pem;
  return grpc::SslCredentials(options);
}

void AddToken(const LinkSecurity* security, grpc::ClientContext* context) {
  if (security == nullptr || security->token.empty()) return;
  context->AddMetadata(kHeader, std::string(kScheme) + security->token);
}

bool HasToken(const LinkSecurity* security, const grpc::CallbackServerContext& context) {
  if (security == nullptr || security->token.empty()) return true;
  const auto found = context.client_metadata().find(kHeader);
  if (found == context.client_metadata().end()) return false;
  const std::string_view value(found->second.data(), found->second.size());
  return value.starts_with(kScheme) && SameSecret(value.substr(kScheme.size()), security->token);
}

Result<std::shared_ptr<grpc::ServerCredentials>> ClientServerCredentials(
    const TlsServerOptions& o) {
  if (!o.on()) return grpc::InsecureServerCredentials();
  AISP_ASSIGN_OR_RETURN(const std::string cert, ReadPem("http.tls_cert_file", o.cert_file));
  AISP_ASSIGN_OR_RETURN(const std::string key, ReadPem("http.tls_key_file", o.key_file));
  grpc::SslServerCredentialsOptions options;
  if (!o.client_ca_file.empty()) {
    AISP_ASSIGN_OR_RETURN(options.pem_root_certs,
                          ReadPem("http.tls_client_ca_file", o.client_ca_file));
    options.client_certificate_request = GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY;
  }
  options.pem_key_cert_pairs.push_back({key, cert});
  return grpc::SslServerCredentials(options);
}

}  // namespace aisp
