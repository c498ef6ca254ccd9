// AdminClient: calls a router's admin API, for commands that show or control a running cluster.
// Blocking; one thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "common/clock.h"
#include "common/result.h"
#include "config/command_line.h"
#include "net/http_client.h"

namespace aisp {

// The flags that all such commands have.
inline constexpr ExtraFlag kRouterFlag = {
    "--router", "URL", "The admin port of the router (default http://127.0.0.1:8082)."};
inline constexpr ExtraFlag kKeyFileFlag = {"--key-file", "FILE",
                                           "File with the router's admin key."};

class AdminClient {
 public:
  // `key_file` "": no key. INVALID_ARGUMENT for a malformed URL.
  static Result<AdminClient> Create(std::string_view url, const std::string& key_file);
  static Result<AdminClient> FromFlags(const CommandLine& line);

  struct Answer {
    int status = 0;
    nlohmann::json body;
    std::string message;  // text of an error answer
  };
  // UNAVAILABLE: no answer, or one that is not JSON.
  Result<Answer> Ask(std::string_view method, const std::string& target,
                     const std::string& body = "") const;
  // As Ask, but an error answer is returned as an error.
  Result<nlohmann::json> Get(const std::string& target) const;
  // The router's clock in Unix seconds, from an answer's Date header. UNAVAILABLE: no answer.
  Result<int64_t> Date() const;
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  // Timeout for an answer; 10 s by default.
  void set_timeout(Duration timeout) { timeout_ = timeout; }

 private:
  Result<HttpClient> Connect() const;

  std::string host_;
  uint16_t port_ = 0;
  HttpHeaders headers_;
  Duration timeout_ = std::chrono::seconds(10);
};

}  // namespace aisp
