#include "common/check.h"

#include <cstdio>
#include <cstdlib>

#include "common/log.h"

namespace aisp {

// Plain stdio, since the logger itself may be broken. The log lines before the failure explain it,
// so they get a moment to be written.
void CheckFailed(const char* file, int line, const char* condition, std::string_view message) {
  std::fprintf(stderr, "%s:%d: check failed: %s%s%.*s\n", file, line, condition,
               message.empty() ? "" : ": ", static_cast<int>(message.size()), message.data());
  std::fflush(stderr);
  FlushLog(FromMs(200));
  std::abort();
}

}  // namespace aisp
