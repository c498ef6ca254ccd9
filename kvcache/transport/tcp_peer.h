// TcpWriter::Peer: one connection to an owner, its writes in order. The writer's thread only, but
// for Alive.
#pragma once

#include <sys/uio.h>

#include <array>
#include <optional>
#include <string>

#include "kvcache/transport/device_stage.h"
#include "kvcache/transport/tcp_writer.h"

namespace aisp {

class TcpWriter::Peer {
 public:
  Peer(TcpWriter* writer, KvPeerId id, UniqueFd socket, uint32_t takes);

  KvPeerId id() const { return id_; }
  Status Alive() const;

  void Watch();  // puts the socket into the writer's epoll set
  void Enqueue(WriteJob job);
  void Cancel(Epoch epoch);
  // The socket is ready for something, or writes were queued.
  void Serve();
  // Completes everything with `why`; later writes complete at once.
  void Fail(const Error& why);
  // When the peer fails unless it moves; kNever while nothing is under way.
  Instant deadline() const { return deadline_; }
  void CheckDeadline(Instant now);

 private:
  enum class State { kQueued, kSent, kCancelled };
  struct Entry {
    WriteJob job;
    State state = State::kQueued;
    // What has been made into messages: copies before this one, and so much of it.
    size_t copy = 0;
    uint64_t in_copy = 0;
    uint64_t rest = 0;  // bytes that have not
    bool begun = false;
    int unacknowledged = 0;  // messages that are wholly sent
    Status verdict;          // of those that were acknowledged
  };

  // An empty status, or why the connection is over.
  Status SendQueued();
  Status ReadAcks();
  Status OnAck(const TcpAck& ack);
  Status BeginMessage(Entry& entry);
  // What is under way is wholly sent.
  void EndMessage();
  uint64_t PartChecksum() const;
  // A message of nothing but the checksum that is due.
  void BeginChecksum();
  // Goes on from an entry of which no more is to be sent; false where there is none.
  bool SkipFinished();
  // What the next message of the write takes of it.
  void TakePart(Entry& entry);
  static bool AllTaken(const Entry& entry) {
    return entry.begun && entry.copy == entry.job.copies.size();
  }
  // The front's messages are all sent and acknowledged, or one has failed and no more are sent.
  void CompleteAcknowledged();
  size_t MessageParts(std::array<iovec, 64>& iov) const;
  void CompleteFront(Status status);
  void CompleteCancelled();
  void Moved();
  void WantWrite(bool want);

  TcpWriter* const writer_;
  const KvPeerId id_;
  UniqueFd socket_;
  const bool takes_checksums_behind_;
  std::deque<Entry> entries_;    // in order of Write; sent ones, then queued and cancelled ones
  size_t next_ = 0;              // the first entry that is not wholly sent
  std::vector<BlockCopy> part_;  // of entries_[next_], once its message began
  // Header and copy list of that, behind the checksum of the message before where that is due.
  std::vector<std::byte> head_;
  bool checksum_behind_ = false;   // of the message under way
  std::optional<uint64_t> due_;    // the checksum of the message before, not sent yet
  bool message_of_entry_ = false;  // or nothing but such a checksum
  DeviceStage stage_;              // and its payload, from a GPU
  uint64_t message_bytes_ = 0;     // of the whole message, 0 when none began
  uint64_t sent_bytes_ = 0;        // of it
  TcpAck ack_;
  size_t ack_bytes_ = 0;
  bool want_write_ = false;
  Instant deadline_ = kNever;
  mutable std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace aisp
