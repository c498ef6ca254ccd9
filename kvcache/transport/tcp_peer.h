// TcpWriter::Peer: one connection to an owner and its writes in order. The writer's thread only,
// except Alive.
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

  void Watch();  // adds the socket to the writer's epoll set
  void Enqueue(WriteJob job);
  void Cancel(Epoch epoch);
  // Called when the socket is ready, or writes were queued.
  void Serve();
  // Completes everything with `why`; later writes complete at once.
  void Fail(const Error& why);
  // When the peer fails without progress; kNever while nothing is in flight.
  Instant deadline() const { return deadline_; }
  void CheckDeadline(Instant now);

 private:
  enum class State { kQueued, kSent, kCancelled };
  struct Entry {
    WriteJob job;
    State state = State::kQueued;
    // Sent position: copies before this one, and bytes of this one.
    size_t copy = 0;
    uint64_t in_copy = 0;
    uint64_t rest = 0;  // bytes not yet in messages
    bool begun = false;
    int unacknowledged = 0;  // fully sent messages
    Status verdict;          // of the acknowledged messages
  };

  // These return an error if the connection is over.
  Status SendQueued();
  Status ReadAcks();
  Status OnAck(const TcpAck& ack);
  Status BeginMessage(Entry& entry);
  // The current message is fully sent.
  void EndMessage();
  // Whether writes to the owner with this greeting carry checksums.
  bool WantsChecksums(uint32_t takes) const;
  uint64_t PartChecksum() const;
  // Adds what is sent to the checksum that follows, while it is in a cache.
  void HashSent();
  // Starts a message that holds only the pending checksum.
  void BeginChecksum();
  // Advances past an entry with nothing more to send; false: there is none.
  bool SkipFinished();
  // Chooses the part of the write for the next message.
  void TakePart(Entry& entry);
  static bool AllTaken(const Entry& entry) {
    return entry.begun && entry.copy == entry.job.copies.size();
  }
  // Completes the front entry once its messages are all sent and acknowledged, or one has failed.
  void CompleteAcknowledged();
  // What one system call sends of the message from sent_bytes_ on.
  size_t MessageParts(std::array<iovec, 64>& iov, bool* last) const;
  // The current message is followed by another write's in the same call of SendQueued.
  bool AnotherFollows() const;
  void CompleteFront(Status status);
  void CompleteCancelled();
  void Moved();
  void WantWrite(bool want);

  TcpWriter* const writer_;
  const KvPeerId id_;
  UniqueFd socket_;
  const bool takes_checksums_behind_;
  const bool checksums_;
  std::deque<Entry> entries_;    // in order of Write; sent ones, then queued and cancelled ones
  size_t next_ = 0;              // the first entry that is not fully sent
  std::vector<BlockCopy> part_;  // part of entries_[next_] in the current message
  // The previous message's pending checksum, if any, then the current header and copy list.
  std::vector<std::byte> head_;
  bool checksum_behind_ = false;  // of the current message
  size_t hashed_ = 0;             // copies of part_ in sum_, and their bytes
  uint64_t hashed_bytes_ = 0;
  uint64_t sum_ = 0;
  std::optional<uint64_t> due_;    // the previous message's checksum, not sent yet
  bool message_of_entry_ = false;  // false: only such a checksum
  DeviceStage stage_;              // payload from a GPU
  uint64_t message_bytes_ = 0;     // of the whole message, 0: none begun
  uint64_t sent_bytes_ = 0;        // of the current message
  std::array<TcpAck, 64> acks_;
  size_t ack_bytes_ = 0;  // received of them
  bool want_write_ = false;
  Instant deadline_ = kNever;
  mutable std::mutex failure_mutex_;
  Status failure_;
};

}  // namespace aisp
