// DialledBytes: adds the connections that this process dials through gRPC to ConnectionBytes, since
// a server can send an endless head just as a client can.
//
// gRPC hides a channel's descriptors, but passes each socket to the channel's socket mutator before
// it connects. A duplicate of the descriptor is kept until the connection has ended. For net/ only
// (it includes gRPC). Any thread.
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
  // Channels may outlive it; they are then no longer counted.
  ~DialledBytes();
  DialledBytes(const DialledBytes&) = delete;
  DialledBytes& operator=(const DialledBytes&) = delete;

  // Counts connections of a channel with `arguments` as `key`, which ends with the channel.
  void Watch(const std::string& key, grpc::ChannelArguments* arguments);
  // For channels to untrusted servers: limits messages to `max_message_bytes`, disables compression
  // (gRPC checks the size only after unpacking), and limits the window to one mebibyte.
  static void Bound(size_t max_message_bytes, grpc::ChannelArguments* arguments);
  // Returns a function that schedules its argument on another thread, 0.1 to 0.2 s later; dropped
  // if this object is destroyed before.
  std::function<void(std::function<void()>)> Soon() const;

 private:
  class Sockets;
  class Mutator;

  const std::shared_ptr<Sockets> sockets_;
  Thread thread_;
};

}  // namespace aisp
