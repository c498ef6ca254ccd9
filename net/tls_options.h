// What TLS and the cluster's own credential are configured by: names of files. Plain data, for
// config/ too.
#pragma once

#include <string>

namespace aisp {

// Of a server for clients. Off while cert_file is empty.
struct TlsServerOptions {
  std::string cert_file;       // PEM: the certificate, then its chain
  std::string key_file;        // PEM
  std::string client_ca_file;  // PEM; not empty: clients must show a certificate of one of these
  bool on() const { return !cert_file.empty(); }
};

// Between router, prefill and decode workers. With certificates both sides show one and check the
// other's; with a token whoever dials sends it.
struct ClusterOptions {
  std::string token_file;
  std::string cert_file;
  std::string key_file;
  std::string ca_file;
  std::string peer_name = "aisp";  // that the certificates of all processes carry
  bool tls() const { return !cert_file.empty(); }
};

}  // namespace aisp
