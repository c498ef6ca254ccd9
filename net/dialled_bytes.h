// DialledBytes: the connections that gRPC channels of this process have dialled, for the count of
// net/connection_bytes.h: who answers can send a head without an end just as who calls.
//
// gRPC keeps the descriptors of a channel to itself, but shows each socket to the channel's socket
// mutator before it connects. A second descriptor of it is kept until the connection has ended.
// Inside net/ only (it brings gRPC). Any thread.
#pragma once

#include <grpcpp/grpcpp.h>

#include <functional>
#include <memory>
#include <string>

#include "common/threads.h"
#include "net/connection_bytes.h"

namespace aisp {

class DialledBytes {
 public:
  explicit DialledBytes(std::shared_ptr<ConnectionBytes> bytes);
  // Channels may live on; nothing of theirs is counted any more.
  ~DialledBytes();
  DialledBytes(const DialledBytes&) = delete;
  DialledBytes& operator=(const DialledBytes&) = delete;

  // What a channel with `arguments` connects to counts as `key`'s, which ends with the channel.
  void Watch(const std::string& key, grpc::ChannelArguments* arguments);
  // Of a channel that anybody may answer: messages are bounded by `max_message_bytes`, none is
  // unpacked (its size is looked at afterwards), and no window grows beyond a mebibyte.
  static void Bound(size_t max_message_bytes, grpc::ChannelArguments* arguments);
  // What runs a function on a thread of its own after a tenth of a second or two; not if this ends
  // before.
  std::function<void(std::function<void()>)> Soon() const;

 private:
  class Sockets;
  class Mutator;

  const std::shared_ptr<Sockets> sockets_;
  Thread thread_;
};

}  // namespace aisp
