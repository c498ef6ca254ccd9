// Waits for a socket of a fuzz target. libFuzzer's timer raises SIGALRM, which interrupts waits.
#pragma once

#include <poll.h>

#include <cerrno>

namespace aisp {

// False: nothing arrived for `ms` (restarted after each signal).
inline bool AwaitReadable(int fd, int ms) {
  pollfd wait{fd, POLLIN, 0};
  int n = 0;
  do {
    n = poll(&wait, 1, ms);
  } while (n < 0 && errno == EINTR);
  return n > 0;
}

}  // namespace aisp
