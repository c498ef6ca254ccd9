// TcpOwner::Connection: what one writer sends, message by message. The owner's thread only.
#pragma once

#include <sys/uio.h>

#include <array>
#include <optional>

#include "kvcache/transport/device_stage.h"
#include "kvcache/transport/tcp_owner.h"

namespace aisp {

class TcpOwner::Connection {
 public:
  Connection(TcpOwner* owner, UniqueFd socket, std::string party, Instant now);
  ~Connection();

  int fd() const { return socket_.get(); }
  // Of whom it is while it is a stranger's; it may be a writer's after the next Serve.
  const std::string& party() const { return party_; }
  bool stranger() const { return state_ == State::kHello; }
  Instant since() const { return since_; }
  // Reads and answers what there is, at most a bounded amount. False: to be closed.
  bool Serve(uint32_t events);
  // In the middle of a write for too long.
  bool Stalled(Instant now) const { return now >= stalled_at_; }
  bool Waiting() const { return stalled_at_ != kNever; }

 private:
  enum class State { kHello, kHeader, kCopies, kPayload, kChecksum };
  enum class Io { kProgress, kWouldBlock, kClosed };

  Io Step();
  Io Fill(void* target, size_t size);  // reads more of a fixed-size piece
  Io ReadPayload();
  bool OnHello();
  bool OnHeader();
  bool OnCopies();
  void OnPayload();
  void OnWriteComplete();
  // Of a pool in a GPU's memory: makes room for the payload, and brings it to its place.
  Status PrepareStage();
  Status StoreStage();
  Status CheckGrants() const;
  bool ChecksumMatches() const;
  size_t PayloadTargets(std::array<iovec, 64>& iov);
  void Landed(size_t bytes);
  bool Flush();
  // Before this sleeps: a write wakes it by pieces, everything else by the byte.
  void ChooseWakeup();
  // Of the write under way: what is sure to follow on this connection.
  uint64_t BytesToCome() const;
  void NextMessage(State state);

  TcpOwner* const owner_;
  const UniqueFd socket_;
  const std::string party_;
  const Instant since_;
  State state_ = State::kHello;
  Instant stalled_at_;
  size_t filled_ = 0;  // of the current fixed-size piece
  TcpHello hello_;
  TcpWriteHeader header_;
  std::vector<TcpCopy> copies_;
  size_t copy_ = 0;         // payload: the copy being received
  uint64_t in_copy_ = 0;    // and how much of it is there
  uint64_t remaining_ = 0;  // payload bytes to come
  DeviceStage stage_;       // where the payload waits for the rest of it, on its way to a GPU
  Status verdict_;          // of the write being received
  uint64_t announced_ = 0;  // payload of the same write in later messages
  std::optional<uint64_t> refused_;  // the last write that failed: its writer may stop in it
  std::vector<std::byte> out_;
  bool want_write_ = false;
  size_t wake_bytes_ = 1;  // that must have come before the socket counts as readable
};

}  // namespace aisp
