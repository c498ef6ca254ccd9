// LiveTerminal: a full-screen view on a terminal, and its keys. The destructor restores the
// terminal. One thread; signals must be blocked (BlockSignals) before.
#pragma once

#include <termios.h>

#include <string>

#include "server/process.h"

namespace aisp {

// Columns of the terminal at stdout; a very large number if it is not a terminal.
size_t TerminalColumns();

// Events of Wait.
enum class LiveEvent { kTimeout, kQuit, kResized, kKey };

class LiveTerminal {
 public:
  // Without a terminal at stdout nothing is changed, and Wait reports only signals. Keys are read
  // if stdin is a terminal and this process is in its foreground.
  LiveTerminal();
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  bool live() const { return live_; }

  // Shows `text`, cut to the rows available; the last row counts what was left out. Without a
  // terminal it is written unchanged. False: the output was closed.
  bool Show(const std::string& text) const;

  // Waits for a key, a resize or a stop signal, at most `timeout_ms`. `key`: for kKey, the last key
  // pressed. q, Escape and Ctrl-D quit; Ctrl-C is a signal. Arrow keys and the like count as
  // Escape.
  LiveEvent Wait(int timeout_ms, char* key);

 private:
  LiveEvent ReadKey(char* key);

  StopSignals stop_{-1};
  bool live_;
  bool keys_ = false;
  int resize_fd_ = -1;
  termios before_{};
};

}  // namespace aisp
