// The settings of the client side. Help texts are sentences for an operator: what it does, and what
// 0 or "" means.
#include "config/settings.h"

namespace aisp {

using namespace std::chrono_literals;  // 100ms, 24h

namespace {

// API keys and their limits.
void BindKeySettings(Config::Http& h, SettingTable& t) {
  t.Add("api_keys", &h.api_keys,
        "Keys that clients must send one of, each [NAME:]KEY or [NAME:]sha256:DIGEST, then what it "
        "may: expires=2027-01-31 requests=60/m tokens=100000/d inflight=4 weight=2 priority=all "
        "class=batch slo-ttft-ms=300 slo-tpot-ms=12. Empty: everybody is served. Never printed; a "
        "flag shows them in `ps`, so prefer a file.")
      .Secret();
  t.Add("api_keys_file", &h.api_keys_file,
        "File with one such key a line, beside http.api_keys; # begins a comment.")
      .Flag("--api-keys-file");
  t.Add("max_inflight_per_key", &h.max_inflight_per_key,
        "Choices of one key's tenant, of all its requests, that may run or wait at once (429 "
        "beyond); 0: no bound but its share of router.max_inflight.")
      .Flag("--max-inflight-per-key")
      .Range(0, 1 << 20);
  t.Add("requests_per_key", &h.requests_per_key,
        "Requests of a tenant in a time, as 60/m (s, m, h or d), where its key says nothing else; "
        "429 beyond, with the time to wait. Empty: no bound.")
      .Flag("--requests-per-key");
  t.Add("tokens_per_key", &h.tokens_per_key,
        "Tokens, prompt and answer together, of a tenant in a time, as 1000000/d, where its key "
        "says nothing else; 429 once they are spent. Empty: no bound.")
      .Flag("--tokens-per-key");
}

}  // namespace

// Long: a table, one statement for each setting.
void BindHttpSettings(Config::Http& h, SettingTable& t) {
  t.Section("http",
            "The router process as clients see it: addresses, bounds and keys of HTTP and gRPC.");
  t.Add("address", &h.address,
        "Address that the HTTP server binds; 0.0.0.0 opens it to the network.")
      .Flag("--host");
  t.Add("port", &h.port, "HTTP port; 0: a free one, written to the log.")
      .Flag("--port")
      .Range(0, 65535);
  t.Add("max_header", &h.max_header, "Largest request head (431 beyond).")
      .Flag("--max-header-bytes")
      .Bytes()
      .Range(kKiB, kMiB);
  t.Add("max_body", &h.max_body, "Largest request body (413 beyond).")
      .Flag("--max-body-bytes")
      .Bytes()
      .Range(kKiB, kGiB);
  t.Add("max_total_body", &h.max_total_body,
        "All request bodies that are read or answered at one time, counted as they arrive (503 "
        "beyond).")
      .Bytes()
      .Range(kKiB, 64 * kGiB);
  t.Add("max_client_body", &h.max_client_body,
        "Bodies not whole yet of one tenant, or of one address without a key (503 beyond).")
      .Bytes()
      .Range(kKiB, 64 * kGiB);
  t.Add("max_connections", &h.max_connections, "Open HTTP connections; more are refused with 503.")
      .Flag("--max-connections")
      .Range(1, 1 << 20);
  t.Add("max_waiting_per_address", &h.max_waiting_per_address,
        "Connections of one address that brought no key and have no request running; more are "
        "refused with 503. Raise it behind a proxy without keys.")
      .Range(1, 1 << 20);
  t.Add("max_unsent", &h.max_unsent, "Unsent bytes of one stream before its slow reader is cut.")
      .Bytes()
      .Range(4 * kKiB, kGiB);
  t.Add("read_timeout", &h.read_timeout, "Time to send a whole request.").Range(100ms, 24h);
  t.Add("idle_timeout", &h.idle_timeout, "Keep-alive time between requests.").Range(100ms, 24h);
  t.Add("write_timeout", &h.write_timeout,
        "Time in which a client for whom bytes wait must take some (min_read_rate).")
      .Range(100ms, 24h);
  t.Add("min_read_rate", &h.min_read_rate,
        "Bytes per second that a client must take while bytes wait for it, over write_timeout; a "
        "slower one is cut.")
      .Bytes()
      .Range(1, kGiB);
  t.Add("max_answer", &h.max_answer,
        "Memory that one whole (unstreamed) answer, or one of /v1/responses, may take while it is "
        "made; beyond it the request "
        "ends with 400. All of them together: max_total_body.")
      .Bytes()
      .Range(64 * kKiB, 64 * kGiB);
  t.Add("max_stored_responses", &h.max_stored_responses,
        "Responses of a tenant that are kept in memory for previous_response_id and GET; beyond it "
        "the one used least lately is forgotten. 0: none is kept, as with \"store\": false.")
      .Flag("--max-stored-responses")
      .Range(0, 1 << 24);
  t.Add("max_stored_bytes", &h.max_stored_bytes,
        "Bytes of the responses that are kept for one tenant.")
      .Bytes()
      .Range(kKiB, 64 * kGiB);
  t.Add("max_total_stored", &h.max_total_stored,
        "Bytes of the responses that are kept for all tenants together.")
      .Bytes()
      .Range(kKiB, 64 * kGiB);
  t.Add("keepalive_comment", &h.keepalive_comment,
        "A silent stream gets an SSE comment this often.")
      .Range(100ms, 24h);
  t.Add("grpc", &h.grpc, "Serve gRPC to clients too (aisp.v1.Inference, health, reflection).")
      .Flag("--grpc");
  t.Add("grpc_address", &h.grpc_address,
        "Address that the gRPC server for clients binds; empty: as http.address.")
      .Flag("--grpc-host");
  t.Add("grpc_port", &h.grpc_port,
        "gRPC port for clients; 0: a free one, written to the log; -1: one above http.port.")
      .Flag("--grpc-port")
      .Range(-1, 65535);
  t.Add("tls_cert_file", &h.tls.cert_file,
        "PEM file with the server's certificate and its chain: HTTP and gRPC are then TLS only; "
        "empty: no TLS.")
      .Flag("--tls-cert");
  t.Add("tls_key_file", &h.tls.key_file, "PEM file with the private key of that certificate.")
      .Flag("--tls-key");
  t.Add("tls_client_ca_file", &h.tls.client_ca_file,
        "PEM file of authorities: clients must show a certificate that one of them signed; empty: "
        "clients need none.")
      .Flag("--tls-client-ca");
  t.Add("cors_origins", &h.cors_origins,
        "Origins whose web pages may call this server, as https://example.org, or * for all; "
        "empty: none.")
      .Flag("--cors-origins");
  BindKeySettings(h, t);
}

}  // namespace aisp
