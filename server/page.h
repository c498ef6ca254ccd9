// The router's page: workers, load and latency, and a box to try a completion. Static files inside
// the binary, the same for everybody; what they show comes from the admin API, with its rules.
#pragma once

#include "net/http_server.h"

namespace aisp {

// Answers GET and HEAD of / and /page/*; false when the path is none of them.
bool ServePage(HttpExchange& exchange);

}  // namespace aisp
