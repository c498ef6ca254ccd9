// OpenStreams: the number of streams that gRPC holds per connection, from channelz. gRPC's limit of
// concurrent streams does not cover streams that the client has reset, but they stay until their
// call was processed, and gRPC keeps reading meanwhile: with heads of twenty bytes, one connection
// creates 80,000 per second. Nor does the limit apply to a client that never acknowledges SETTINGS.
//
// One thread at a time; does not block gRPC.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace aisp {

class OpenStreams {
 public:
  // `key`: PeerKey of the connection's other end. 0 if gRPC does not know the connection (yet).
  uint64_t Of(const std::string& key);

  // From channelz's JSON of a socket.
  static uint64_t InSocket(std::string_view json);

 private:
  void List();

  std::unordered_map<std::string, intptr_t> sockets_;  // channelz ids by PeerKey
};

}  // namespace aisp
