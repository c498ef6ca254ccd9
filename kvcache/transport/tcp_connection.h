// TcpOwner::Connection: parses one writer's messages. The owner's thread only.
#pragma once

#include <sys/uio.h>

#include <array>
#include <optional>
#include <span>

#include "kvcache/transport/device_stage.h"
#include "kvcache/transport/tcp_owner.h"

namespace aisp {

class TcpOwner::Connection {
 public:
  Connection(TcpOwner* owner, UniqueFd socket, std::string party, Instant now);
  ~Connection();

  int fd() const { return socket_.get(); }
  // Its address group while it has not greeted; it may have after the next Serve.
  const std::string& party() const { return party_; }
  bool stranger() const { return state_ == State::kHello; }
  Instant since() const { return since_; }
  // Reads and answers a bounded amount of input. False: to be closed.
  bool Serve(uint32_t events);
  // Stuck in the middle of a write for too long.
  bool Stalled(Instant now) const { return now >= stalled_at_; }
  bool Waiting() const { return stalled_at_ != kNever; }

 private:
  enum class State { kHello, kHeader, kCopies, kPayload, kChecksum };
  enum class Io { kProgress, kWouldBlock, kClosed };

  Io Step();
  Io Fill(void* target, size_t size);  // reads more of a fixed-size piece
  Io ReadPayload();
  // Reads into `iov` what is ahead, else what the socket has, and more ahead if `past` and there is
  // a turn left. As recv.
  ssize_t Receive(std::span<iovec> iov, bool past);
  bool OnHello();
  bool OnHeader();
  bool OnCopies();
  void OnPayload();
  void OnWriteComplete();
  // For a GPU pool: reserves a buffer for the payload, and copies it to the pool.
  Status PrepareStage();
  Status StoreStage();
  Status CheckGrants() const;
  bool ChecksumMatches();
  size_t PayloadTargets(std::array<iovec, 64>& iov);
  void Landed(size_t bytes);
  // Adds landed copies to the checksum while they are in a cache. Under the pool's lock.
  void HashLanded();
  bool Flush();
  // Before sleeping: chooses how many bytes wake it; a write wakes it in pieces.
  void ChooseWakeup();
  // Bytes of the write in progress that are certain to follow on this connection.
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
  size_t copy_ = 0;                  // payload: the copy being received
  uint64_t in_copy_ = 0;             // bytes of it received
  size_t hashed_ = 0;                // copies in sum_
  uint64_t sum_ = 0;                 // FoldChecksum of the first copies
  uint64_t remaining_ = 0;           // payload bytes not yet received
  DeviceStage stage_;                // buffers the payload on its way to a GPU
  Status verdict_;                   // of the write being received
  uint64_t announced_ = 0;           // payload of the same write in later messages
  std::optional<uint64_t> refused_;  // the last failed write: its writer may stop in it
  // Bytes received with the ones before them: a message's head comes with its predecessor's end, so
  // a short message costs one system call instead of four.
  std::array<std::byte, 1024> ahead_;
  std::span<const std::byte> unread_;  // of ahead_
  bool reads_ahead_ = true;
  std::vector<std::byte> out_;
  bool want_write_ = false;
  size_t wake_bytes_ = 1;  // that must have arrived before the socket counts as readable
};

}  // namespace aisp
