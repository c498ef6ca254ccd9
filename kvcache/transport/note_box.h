// NoteBox: short messages from one writer to a pool's owner, in memory that both processes map. An
// owner that looks finds a note at once, without a socket and the wakes of its threads. Nobody is
// woken and nobody waits: a note may be read late or never, so whatever matters is also sent on the
// link.
//
// One thread at either end. The other end may write anything into the memory: lengths and counters
// are checked before use, and a note is copied before it is parsed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "common/result.h"
#include "kvcache/transport/pool_memory.h"
#include "kvcache/transport/unique_fd.h"

namespace aisp {

class NoteBox {
 public:
  static constexpr size_t kMostBytes = 8184;
  static constexpr uint64_t kNotes = 8;

  // The owner's end. Errors of the system.
  static Result<NoteBox> Create();
  // The writer's end. FAILED_PRECONDITION: its owner could take the memory away.
  static Result<NoteBox> Open(UniqueFd fd);

  int fd() const { return fd_.get(); }
  // Writer. False: the box is full, or the note is too long.
  bool Put(std::string_view note);
  // Owner: whether Take may have something.
  bool Filled() const;
  // Owner: the oldest note. False: none.
  bool Take(std::string* note);

 private:
  struct Memory;
  NoteBox(UniqueFd fd, PoolMapping mapping) : fd_(std::move(fd)), mapping_(std::move(mapping)) {}
  Memory& memory() const;

  UniqueFd fd_;
  PoolMapping mapping_;
  uint64_t count_ = 0;  // put or taken at this end
};

}  // namespace aisp
