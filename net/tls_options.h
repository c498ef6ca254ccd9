// Settings of TLS and the cluster's credentials, as file names. Plain data, used by config/ too.
#pragma once

#include <string>

namespace aisp {

// For a server for clients. Off while cert_file is empty.
struct TlsServerOptions {
  std::string cert_file;       // PEM: the certificate, then its chain
  std::string key_file;        // PEM
  std::string client_ca_file;  // PEM; if set, clients need a certificate from one of these CAs
  bool on() const { return !cert_file.empty(); }
};

// Between router, prefill and decode workers. With certificates, both sides show one and check the
// other's; with a token, the dialling side sends it.
struct ClusterOptions {
  std::string token_file;
  std::string cert_file;
  std::string key_file;
  std::string ca_file;
  std::string peer_name = "aisp";  // name in the certificates of all processes
  bool tls() const { return !cert_file.empty(); }
};

}  // namespace aisp
