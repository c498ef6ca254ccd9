// Waits for a socket of a fuzz target. libFuzzer looks at its clock by SIGALRM, which interrupts.
#pragma once

#include <poll.h>

#include <cerrno>

namespace aisp {

// False: nothing came for `ms` (counted anew after each signal).
inline bool AwaitReadable(int fd, int ms) {
  pollfd wait{fd, POLLIN, 0};
  int n = 0;
  do {
    n = poll(&wait, 1, ms);
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

}  // namespace aisp
