// Cors: which web pages of other origins may call this server. Off unless http.cors_origins lists
// some; browsers then hide answers from all pages but ours. Immutable; the I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/http_server.h"

namespace aisp {

class Cors {
 public:
  // Origins as "https://example.org", or "*". INVALID_ARGUMENT names any other entry.
  static Result<Cors> Create(std::vector<std::string> origins);

  // Returns the exchange to answer, which adds the CORS headers. Null: it was a preflight and has
  // been answered.
  std::shared_ptr<HttpExchange> Admit(std::shared_ptr<HttpExchange> exchange) const;

 private:
  // The value of access-control-allow-origin for `origin`; "" when it may not call.
  std::string AllowedOrigin(std::string_view origin) const;

  std::vector<std::string> origins_;
};

}  // namespace aisp
