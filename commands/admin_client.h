// AdminClient: asks a router's admin API, for the commands that show and steer a running cluster.
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

// The flags that every such command has.
inline constexpr ExtraFlag kRouterFlag = {
    "--router", "URL", "The admin port of the router (default http://127.0.0.1:8082)."};
inline constexpr ExtraFlag kKeyFileFlag = {"--key-file", "FILE",
                                           "File with the router's admin key."};

class AdminClient {
 public:
  // `key_file` "": no key. INVALID_ARGUMENT when the URL is none.
  static Result<AdminClient> Create(std::string_view url, const std::string& key_file);
  static Result<AdminClient> FromFlags(const CommandLine& line);

  struct Answer {
    int status = 0;
    nlohmann::json body;
    std::string message;  // what an error answer says
  };
  // UNAVAILABLE: nobody answers there, or not with JSON.
  Result<Answer> Ask(std::string_view method, const std::string& target,
                     const std::string& body = "") const;
  // As Ask, and an error answer is an error.
  Result<nlohmann::json> Get(const std::string& target) const;
  // The router's clock, seconds since 1970, from the Date of an answer. UNAVAILABLE: nobody is
  // there.
  Result<int64_t> Date() const;
  std::string address() const { return host_ + ":" + std::to_string(port_); }
  // How long an answer may take, 10 s unless set.
  void set_timeout(Duration timeout) { timeout_ = timeout; }

 private:
  Result<HttpClient> Connect() const;

  std::string host_;
  uint16_t port_ = 0;
  HttpHeaders headers_;
  Duration timeout_ = std::chrono::seconds(10);
};

}  // namespace aisp
