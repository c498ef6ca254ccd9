// Readers: the decode workers for which a prefill worker computes, one entry per link: their
// identity, and the connection to their pool. Plain bookkeeping; engine thread.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "kvcache/kv_conversion.h"
#include "prefill/peer_connector.h"
#include "proto/link.h"
#include "proto/shared_prompts.h"

namespace aisp {

using ReaderId = StrongId<struct ReaderTag, uint64_t>;

struct Reader {
  ReaderId id;
  LinkId link;
  bool up = true;           // false: the link is gone, started writes are awaited
  bool greeted = false;     // its fingerprint fits and its pool can be written
  uint64_t connecting = 0;  // the connection attempt in progress; 0: none
  bool closing = false;     // its pool is lost: no new work, close when nothing is left
  Instant hello_deadline = kNever;
  std::string worker_id;
  uint64_t incarnation = 0;
  KvConversion conversion;  // from our pool to its
  bool verify = false;      // wants checks of blocks
  SharedPromptsIn prompts;
  PeerPool pool;
  int32_t transfers = 0;
  // The largest epoch that was granted, or revoked while unknown. Grants arrive in the order of
  // their epochs: one that is not larger is repeated or late, and its blocks may be in other use.
  uint64_t last_epoch = 0;

  const KvLayout& layout() const { return conversion.to(); }
  // Whether the request brings a grant for itself that is not a repetition.
  bool IsNewGrant(const v1::PrefillRequest& request) const {
    return request.has_grant() && request.grant().transfer_id() == request.transfer_id() &&
           request.grant().epoch() > last_epoch;
  }
  bool Is(const Reader& other) const {
    return greeted && other.greeted && worker_id == other.worker_id &&
           incarnation == other.incarnation;
  }
};

class Readers {
 public:
  Reader& Add(LinkId link, Instant hello_deadline) {
    const ReaderId id(++last_id_);
    Reader& reader = readers_[id];
    reader.id = id;
    reader.link = link;
    reader.hello_deadline = hello_deadline;
    return reader;
  }
  Reader* Find(ReaderId id) {
    const auto it = readers_.find(id);
    return it == readers_.end() ? nullptr : &it->second;
  }
  // The reader of a link that is up.
  Reader* FindLink(LinkId link) {
    for (auto& [id, reader] : readers_) {
      if (reader.up && reader.link == link) return &reader;
    }
    return nullptr;
  }
  // The link of the same decode process that is up.
  Reader* FindLive(const Reader& same) {
    for (auto& [id, reader] : readers_) {
      if (reader.up && reader.Is(same)) return &reader;
    }
    return nullptr;
  }
  void Erase(ReaderId id) { readers_.erase(id); }

  std::map<ReaderId, Reader>& all() { return readers_; }
  const std::map<ReaderId, Reader>& all() const { return readers_; }

 private:
  std::map<ReaderId, Reader> readers_;  // ordered, so that the simulation is deterministic
  uint64_t last_id_ = 0;
};

}  // namespace aisp
