// A wrapper of UCX: one context and one worker, endpoints, messages. All calls on a worker are made
// by one thread, the transport's.
#pragma once

#include <ucp/api/ucp.h>

#include <cstring>
#include <memory>
#include <span>
#include <string>
#include <type_traits>
#include <vector>

#include "common/result.h"

namespace aisp::ucx {

// UNAVAILABLE with UCX's message.
Error UcxError(const std::string& what, ucs_status_t status);

class Worker {
 public:
  // UNAVAILABLE: UCX does not work here, with its message.
  static Result<std::unique_ptr<Worker>> Open();
  ~Worker();
  Worker(const Worker&) = delete;
  Worker& operator=(const Worker&) = delete;

  ucp_worker_h get() const { return worker_; }
  // Readable when there is work, after Arm returned true.
  int fd() const { return fd_; }
  // False: there is work already; do not wait.
  bool Arm();
  // Does pending work; true if there was any.
  bool Progress();

  // Ends the connection at once; callbacks of its sends and receives come with an error. The handle
  // must not be used any more.
  void Close(ucp_ep_h endpoint);
  // Connections that are still closing.
  size_t closing() const { return closing_.size(); }

 private:
  Worker() = default;
  ucp_context_h context_ = nullptr;
  ucp_worker_h worker_ = nullptr;
  int fd_ = -1;
  std::vector<void*> closing_;
};

// Gives the receiver an endpoint to reply to.
inline constexpr uint32_t kWithReply = UCP_AM_SEND_FLAG_REPLY;

// Sends a header of `bytes` and a small payload; both are copied.
Status SendSmall(ucp_ep_h endpoint, unsigned id, const void* header, size_t bytes,
                 std::span<const std::byte> payload);

template <typename Message>
Status Send(ucp_ep_h endpoint, unsigned id, const Message& message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  return SendSmall(endpoint, id, &message, sizeof(message), {});
}

// Copies a received header into `message` (headers are unaligned); false: wrong size.
template <typename Message>
bool Read(const void* header, size_t bytes, Message* message) {
  static_assert(std::is_trivially_copyable_v<Message>);
  if (bytes != sizeof(Message)) return false;
  std::memcpy(message, header, sizeof(Message));
  return true;
}

}  // namespace aisp::ucx
