// PoolListener: the owner's side of transports that map a pool: a thread that gives the pool to
// writers with the cookie and tracks which processes have it. Start, WatchWriter and those of
// notes: any one thread.
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "common/threads.h"
#include "kvcache/transport/note_box.h"
#include "kvcache/transport/peer_death.h"
#include "kvcache/transport/pool_socket.h"

namespace aisp {

// What writers receive. The descriptors (-1: none) outlive the listener.
struct PoolOffer {
  std::string lane;
  Hash128 cookie;
  PoolReply reply;
  int pool_fd = -1;
  int scratch_fd = -1;
  // Only processes that can be watched get the pool; else their connection is watched (PeerWatch).
  bool processes_only = false;
  bool notes = false;  // each writer gets a NoteBox
};

class PoolListener {
 public:
  // Listens on a new socket with a random name; at most `max_writers` hold the pool. Errors of the
  // system.
  static Result<std::unique_ptr<PoolListener>> Start(const PoolOffer& offer, size_t max_writers);
  ~PoolListener();

  const std::string& descriptor() const { return descriptor_; }
  // As WriterWatcher. INVALID_ARGUMENT: not a token.
  Result<PeerWatch> WatchWriter(std::string_view token);
  // As of KvTransport.
  bool HasNotes();
  bool TakeNote(std::string* token, std::string* note);

 private:
  struct Writer {
    UniqueFd socket;
    Instant hello_by;                  // kNever once it has greeted and counts as a writer
    std::unique_ptr<PeerWatch> watch;  // set by its hello
    Hash128 token;
    std::shared_ptr<NoteBox> notes;  // read by the thread of TakeNote; may be null
  };

  PoolListener(UniqueFd listen, Waker waker, const PoolOffer& offer, const std::string& name,
               size_t max_writers);
  void Run();
  int PollTimeoutMs(Instant now) const;
  void Accept(Instant now);
  size_t Strangers() const;
  void CloseOldestStranger();
  void Refuse(const Writer& writer, Code code) const;
  // False: the connection is to be closed.
  bool Serve(Writer& writer);

  const UniqueFd listen_;
  const Waker waker_;
  const PoolOffer offer_;
  const std::string descriptor_;
  const size_t max_writers_;
  const SteadyClock clock_;
  std::mutex mutex_;
  std::vector<Writer> writers_;
  std::atomic<uint64_t> boxes_{0};  // counts changes of the writers' boxes
  // Of the thread that takes notes: the boxes as of `boxes_seen_`, and the next one to look into.
  struct Box {
    std::string token;
    std::shared_ptr<NoteBox> notes;
  };
  std::vector<Box> boxes_read_;
  uint64_t boxes_seen_ = 0;
  size_t next_box_ = 0;
  bool stop_ = false;
  bool accept_paused_ = false;  // listener thread only
  Thread thread_;
};

}  // namespace aisp
