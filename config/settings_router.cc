// The settings of the router. Help texts are sentences for an operator: what it does, and what 0 or
// "" means.
#include <iterator>

#include "config/settings.h"
#include "router/policy_options.h"

namespace aisp {

using namespace std::chrono_literals;  // 100ms, 24h

// Long: a table, one statement for each setting.
void BindRouterSettings(Config::Router& r, SettingTable& t) {
  t.Section("router", "How requests are admitted and placed, and how workers are watched.");
  t.Add("listen", &r.listen, "host:port where workers attach (gRPC); port 0: a free one.")
      .Flag("--router-listen");
  t.Add("max_inflight", &r.max_inflight, "Requests in flight; more get 429 with Retry-After.")
      .Flag("--max-inflight")
      .Range(1, 1 << 20);
  t.Add("default_timeout", &r.default_timeout, "Deadline of a request that names none.")
      .Flag("--default-timeout")
      .Range(1ms, 24h);
  t.Add("grammar_compile_timeout", &r.grammar_compile_timeout,
        "CPU time for compiling what an answer must follow, by the clock 8 times as much; beyond "
        "it the request is refused.")
      .Flag("--grammar-compile-timeout")
      .Range(1ms, 1min);
  t.Add("silence_limit", &r.silence_limit, "A worker silent for so long is forgotten.")
      .Range(100ms, 10min);
  t.Add("quiet_limit", &r.quiet_limit,
        "One silent for so long may stand still: it gets nothing new while others can take it, "
        "and what waits for its first token there goes to them. At least five telemetry "
        "intervals; from silence_limit on it does nothing.")
      .Range(50ms, 10min);
  t.Add("telemetry_interval", &r.telemetry_interval, "How often workers report.").Range(5ms, 10s);
  t.Add("max_attempts", &r.max_attempts, "Placements of one request when workers die under it.")
      .Range(1, 100);
  t.Add("slo_ttft", &r.slo_ttft,
        "Time to the first token within which a request counts as served well: for the metrics "
        "(goodput) and for placements, which prefer what keeps it; nothing is refused for it.")
      .Range(0ms, 24h);
  t.Add("slo_tpot", &r.slo_tpot,
        "Time per output token within which a request counts as served well.")
      .Range(0ms, 1h);
  t.Add("max_queued", &r.max_queued,
        "Requests of class batch and best-effort that wait for room that interactive ones leave; "
        "more get 429 with Retry-After. 0: all of them do.")
      .Flag("--max-queued")
      .Range(0, 1 << 16);
  t.Add("batch_patience", &r.batch_patience,
        "A request of class batch that has not ended after so long goes as an interactive one, a "
        "few at a time, so that none starves.")
      .Range(1ms, 24h);
  t.Add("best_effort_patience", &r.best_effort_patience, "The same for class best-effort.")
      .Range(1ms, 24h);
  t.Add("tokenizer_threads", &r.tokenizer_threads, "Threads that tokenize prompts.").Range(1, 256);
  t.Add("policy", &r.policy,
        "Where requests run: cost (least predicted TTFT and TPOT), least-loaded, round-robin, "
        "power-of-two (the less loaded of two workers by chance), or prefix (most of the prompt "
        "cached).")
      .Flag("--router-policy")
      .OneOf({std::begin(kRoutingPolicies), std::end(kRoutingPolicies)});
  t.Add("prefix_pulls", &r.prefix_pulls,
        "A decode worker fetches the beginning of a prompt from another worker that has it cached: "
        "auto (where that is predicted to be faster than computing it), off, or always (whenever "
        "one has it, for tests and measurements).")
      .Flag("--prefix-pulls")
      .OneOf({std::begin(kPrefixPulls), std::end(kPrefixPulls)});
  t.Add("admin", &r.admin,
        "Who may see and drain workers on the admin port: programs on this machine (its address "
        "must "
        "then be a loopback one), whoever sends the key, or nobody (there is no such port).")
      .Flag("--admin")
      .OneOf({"loopback", "key", "off"});
  t.Add("admin_address", &r.admin_address,
        "Address of the router's admin port; one that other machines reach wants admin: key.")
      .Flag("--router-admin-host");
  t.Add("admin_port", &r.admin_port,
        "The router's admin port: the page, /admin and all that http.port has; 0: a free one, "
        "written to the log; -1: two above http.port.")
      .Flag("--router-admin-port")
      .Range(-1, 65535);
  t.Add("admin_key_file", &r.admin_key_file,
        "File whose first line is the admin key (admin: key; aisp drain sends it).")
      .Flag("--admin-key-file");
}

void BindClusterSettings(ClusterOptions& c, SettingTable& t) {
  t.Section("cluster",
            "How router, prefill and decode workers know each other; the same on all of them. With "
            "nothing set, whoever reaches their ports is let in.");
  t.Add("token_file", &c.token_file,
        "File whose first line is the cluster's token: a process without it is refused.")
      .Flag("--cluster-token-file");
  t.Add("tls_cert_file", &c.cert_file,
        "PEM file with this process's certificate: links between processes are then TLS, and each "
        "side checks the other's certificate.")
      .Flag("--cluster-tls-cert");
  t.Add("tls_key_file", &c.key_file, "PEM file with the private key of that certificate.")
      .Flag("--cluster-tls-key");
  t.Add("tls_ca_file", &c.ca_file, "PEM file of the authority that signed all of them.")
      .Flag("--cluster-tls-ca");
  t.Add("tls_name", &c.peer_name,
        "DNS name that every process's certificate carries, wherever it runs.")
      .Flag("--cluster-tls-name");
}

}  // namespace aisp
