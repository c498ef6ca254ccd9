// Common prefixes of several requests on one link (such as the choices of one request), sent once:
// the sender's and the receiver's bookkeeping. One object per end of each link, which ends with the
// link. The thread of the role that owns the link.
#pragma once

#include <cstdint>
#include <map>
#include <optional>

#include "common.pb.h"
#include "common/result.h"
#include "common/shared_tokens.h"

namespace aisp {

class SharedPromptsOut {
 public:
  struct Use {
    uint64_t id = 0;
    bool first = false;  // unknown to the other end: send MakeMessage before the request
  };
  // Counts a request that uses the prompt; copies of one SharedTokens have one id.
  Use Take(const SharedTokens& prompt);
  // A request ended. True when no request uses the prompt any more: send DropPrompt. Unknown ids
  // (0, or from before Clear) have no effect.
  bool Release(uint64_t id);
  // The link is gone. Ids are never reused.
  void Clear();
  size_t size() const { return entries_.size(); }

  static v1::SharedPrompt MakeMessage(uint64_t id, const SharedTokens& prompt);

 private:
  struct Entry {
    SharedTokens prompt;
    uint64_t uses = 0;
  };
  std::map<uint64_t, Entry> entries_;
  std::map<const void*, uint64_t> ids_;
  uint64_t last_id_ = 0;
};

class SharedPromptsIn {
 public:
  // Per link; a peer that shares more misbehaves.
  static constexpr size_t kMaxPrompts = 4096;
  static constexpr size_t kMaxTokens = size_t{64} << 20;

  // RESOURCE_EXHAUSTED beyond the bounds, INVALID_ARGUMENT for an id that is 0 or known: it is not
  // kept, and each request that names it is refused.
  Status Keep(const v1::SharedPrompt& message);
  void Drop(uint64_t id);
  std::optional<SharedTokens> Find(uint64_t id) const;
  size_t size() const { return prompts_.size(); }

 private:
  std::map<uint64_t, SharedTokens> prompts_;
  size_t tokens_ = 0;
};

}  // namespace aisp
