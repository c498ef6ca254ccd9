#include "commands/live_terminal.h"

#include <fmt/format.h>
#include <poll.h>
#include <sys/ioctl.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <cstdio>
#include <vector>

#include "common/check.h"
#include "common/strings.h"

namespace aisp {
namespace {

// Output that is not a terminal is not cut.
constexpr size_t kAnyWidth = 4096;
constexpr winsize kUsualSize = {24, 80, 0, 0};

winsize SizeOfTerminal() {
  winsize size{};
  if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0 || size.ws_row == 0)
    return kUsualSize;
  return size;
}

bool WriteAll(const std::string& text) {
  const bool written = std::fwrite(text.data(), 1, text.size(), stdout) == text.size();
  return std::fflush(stdout) == 0 && written;
}

// Homing the cursor and erasing to the end avoids flicker.
std::string Screenful(const std::string& text, size_t rows) {
  std::vector<std::string_view> lines = Split(text, '\n');
  while (!lines.empty() && lines.back().empty()) lines.pop_back();
  std::string left_out;
  if (lines.size() > rows) {
    left_out = fmt::format("... {} more lines: make the window higher", lines.size() - rows + 1);
    lines.resize(rows - 1);
    lines.push_back(left_out);
  }
  std::string out = "\x1b[H";
  for (size_t i = 0; i < lines.size(); ++i)
    out += fmt::format("{}{}\x1b[K", i > 0 ? "\r\n" : "", lines[i]);
  return out + "\x1b[J";
}

}  // namespace

size_t TerminalColumns() {
  return isatty(STDOUT_FILENO) != 0 ? SizeOfTerminal().ws_col : kAnyWidth;
}

LiveTerminal::LiveTerminal() : live_(isatty(STDOUT_FILENO) != 0) {
  if (!live_) return;
  sigset_t set;
  sigemptyset(&set);
  sigaddset(&set, SIGWINCH);
  AISP_CHECK(pthread_sigmask(SIG_BLOCK, &set, nullptr) == 0);
  resize_fd_ = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
  AISP_CHECK(resize_fd_ >= 0);
  // A background process must not change the terminal, and reading from it would stop the process.
  keys_ = isatty(STDIN_FILENO) != 0 && tcgetpgrp(STDIN_FILENO) == getpgrp() &&
          tcgetattr(STDIN_FILENO, &before_) == 0;
  if (keys_) {
    termios raw = before_;
    raw.c_lflag &= ~static_cast<tcflag_t>(ICANON | ECHO);
    raw.c_cc[VMIN] = 0;
    raw.c_cc[VTIME] = 0;
    raw.c_cc[VSUSP] = _POSIX_VDISABLE;  // a stopped view would leave its screen behind
    keys_ = tcsetattr(STDIN_FILENO, TCSANOW, &raw) == 0;
  }
  WriteAll("\x1b[?1049h\x1b[?25l");
}

LiveTerminal::~LiveTerminal() {
  if (!live_) return;
  WriteAll("\x1b[?25h\x1b[?1049l");
  if (keys_) tcsetattr(STDIN_FILENO, TCSANOW, &before_);
  close(resize_fd_);
}

bool LiveTerminal::Show(const std::string& text) const {
  return WriteAll(live_ ? Screenful(text, SizeOfTerminal().ws_row) : text);
}

LiveEvent LiveTerminal::ReadKey(char* key) {
  std::array<char, 64> pressed;
  const ssize_t length = read(STDIN_FILENO, pressed.data(), pressed.size());
  if (length <= 0) return LiveEvent::kQuit;  // the terminal is gone
  constexpr char kEscape = '\x1b', kEndOfInput = '\x04';
  *key = pressed[0];
  if (*key == kEscape) return length == 1 ? LiveEvent::kQuit : LiveEvent::kKey;
  for (ssize_t i = 0; i < length; ++i) {
    *key = pressed[static_cast<size_t>(i)];
    if (*key == 'q' || *key == kEndOfInput) return LiveEvent::kQuit;
  }
  return LiveEvent::kKey;
}

LiveEvent LiveTerminal::Wait(int timeout_ms, char* key) {
  std::array<pollfd, 3> fds = {{{stop_.signal_fd(), POLLIN, 0},
                                {resize_fd_, POLLIN, 0},
                                {keys_ ? STDIN_FILENO : -1, POLLIN, 0}}};
  if (poll(fds.data(), fds.size(), timeout_ms) <= 0) return LiveEvent::kTimeout;
  if (fds[0].revents != 0) return LiveEvent::kQuit;
  if (fds[1].revents != 0) {
    signalfd_siginfo info{};
    while (read(resize_fd_, &info, sizeof info) == sizeof info) continue;
    return LiveEvent::kResized;
  }
  return ReadKey(key);
}

}  // namespace aisp
