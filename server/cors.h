// Cors: which web pages of other origins may call this server. Off unless http.cors_origins names
// some: a browser then keeps answers from every page but our own. Immutable; the I/O thread.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "net/http_server.h"

namespace aisp {

class Cors {
 public:
  // Origins as "https://example.org", or "*". INVALID_ARGUMENT names what is neither.
  static Result<Cors> Create(std::vector<std::string> origins);

  // The exchange with which the request is to be answered: its answers carry what the browser
  // wants to see. Null: it was a preflight and is answered.
  std::shared_ptr<HttpExchange> Admit(std::shared_ptr<HttpExchange> exchange) const;

 private:
  // What access-control-allow-origin says to this origin; "" when it may not call.
  std::string AllowedOrigin(std::string_view origin) const;

  std::vector<std::string> origins_;
};

}  // namespace aisp
