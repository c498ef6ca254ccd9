#include "common/threads.h"

#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstring>
#include <utility>

#include <fmt/format.h>
#include <poll.h>
#include <pthread.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/check.h"

namespace aisp {
namespace {

constexpr size_t kMaxNameBytes = 15;  // the kernel's limit, without the terminating zero

// All signals except those that a thread causes by its own fault.
sigset_t AsynchronousSignals() {
  sigset_t set;
  sigfillset(&set);
  for (int signal : {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP, SIGSYS})
    sigdelset(&set, signal);
  return set;
}

// On Linux a nice value belongs to a thread. Failure is harmless: the priority stays normal.
void GiveWay() {
  constexpr int kNicer = 5;
  setpriority(PRIO_PROCESS, 0, getpriority(PRIO_PROCESS, 0) + kNicer);
}

}  // namespace

Thread::Thread(const std::string& name, std::function<void()> body, Priority priority) {
  // A new thread inherits the mask, so there is no moment in which it could receive a signal.
  const sigset_t block = AsynchronousSignals();
  sigset_t before;
  AISP_CHECK(pthread_sigmask(SIG_BLOCK, &block, &before) == 0);
  thread_ = std::thread([name = name.substr(0, kMaxNameBytes), body = std::move(body), priority] {
    pthread_setname_np(pthread_self(), name.c_str());
    if (priority == Priority::kBackground) GiveWay();
    body();
  });
  AISP_CHECK(pthread_sigmask(SIG_SETMASK, &before, nullptr) == 0);
}

Thread& Thread::operator=(Thread&& other) noexcept {
  if (thread_.joinable()) thread_.join();
  thread_ = std::move(other.thread_);
  return *this;
}

Thread::~Thread() {
  if (thread_.joinable()) thread_.join();
}

void Thread::Join() { thread_.join(); }

Result<Waker> Waker::Create() {
  const int fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
  if (fd < 0) {
    return ResourceExhausted(fmt::format("eventfd: {}; raise the limit on open files (ulimit -n)",
                                         std::strerror(errno)));
  }
  return Waker(fd);
}

Waker::Waker(Waker&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}

Waker& Waker::operator=(Waker&& other) noexcept {
  std::swap(fd_, other.fd_);
  return *this;
}

Waker::~Waker() {
  if (fd_ >= 0) close(fd_);
}

void Waker::Wake() const {
  const uint64_t one = 1;
  // A write fails only when the counter is full, and then a wake is pending anyway.
  [[maybe_unused]] const ssize_t written = write(fd_, &one, sizeof(one));
}

bool Waker::Drain() const {
  uint64_t count = 0;
  return read(fd_, &count, sizeof(count)) == static_cast<ssize_t>(sizeof(count));
}

bool Waker::Wait(Duration timeout) const {
  pollfd entry{.fd = fd_, .events = POLLIN, .revents = 0};
  const auto seconds = std::chrono::duration_cast<std::chrono::seconds>(timeout);
  const timespec limit{.tv_sec = seconds.count(), .tv_nsec = (timeout - seconds).count()};
  ppoll(&entry, 1, &limit, nullptr);
  return Drain();
}

}  // namespace aisp
