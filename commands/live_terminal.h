// LiveTerminal: a full-screen view on a terminal, and the keys pressed there. The terminal is given
// back as it was by the destructor. One thread; signals must be blocked (BlockSignals) before it.
#pragma once

#include <termios.h>

#include <string>

#include "server/process.h"

namespace aisp {

// Columns of the terminal at stdout; of what is none, more than any line has.
size_t TerminalColumns();

// What a watcher reacts to.
enum class LiveEvent { kTimeout, kQuit, kResized, kKey };

class LiveTerminal {
 public:
  // Without a terminal at stdout nothing is switched and Wait knows signals alone. Keys are read
  // where stdin is a terminal whose foreground we are.
  LiveTerminal();
  ~LiveTerminal();
  LiveTerminal(const LiveTerminal&) = delete;
  LiveTerminal& operator=(const LiveTerminal&) = delete;

  bool live() const { return live_; }

  // Shows `text` from the first line on, cut to the rows there are; what is left out is counted in
  // the last row. On what is no terminal it is written as it is. False: nobody reads it any more.
  bool Show(const std::string& text) const;

  // Waits for a key, a new size or a signal to stop, for at most `timeout_ms`. `key`: which, for
  // kKey, the last one pressed. q, Escape and Ctrl-D quit; Ctrl-C is a signal. An arrow or the like
  // is the key Escape.
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
