// The program: blocks the signals that the run waits for, then runs.
#include <csignal>
#include <string>
#include <vector>

#include "loadgen/run.h"

int main(int argc, char** argv) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  std::signal(SIGPIPE, SIG_IGN);
  return aisp::loadgen::RunLoadgen({argv + 1, argv + argc});
}
