// The router's status page: workers, load and latency, and a box to try a completion. Static files
// in the binary; the data comes from the admin API under its access rules.
#pragma once

#include "net/http_server.h"

namespace aisp {

// Answers GET and HEAD of / and /page/*; false for any other path.
bool ServePage(HttpExchange& exchange);

}  // namespace aisp
