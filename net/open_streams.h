// OpenStreams: how many streams gRPC keeps of a connection, as its own books (channelz) say. A
// stream that a client has reset is none of those that gRPC bounds, but stays until the call that
// was made of it has been looked at, and gRPC's threads read on before they look: with heads of
// twenty bytes a connection makes 80,000 of them in a second. Nor does gRPC bound them for a client
// that never acknowledges its settings.
//
// One thread at a time; no call of gRPC's waits behind it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>

namespace aisp {

class OpenStreams {
 public:
  // `key`: PeerKey of the connection's other end. 0 where gRPC knows no such connection (yet).
  uint64_t Of(const std::string& key);

  // Of channelz's text about a socket.
  static uint64_t InSocket(std::string_view json);

 private:
  void List();

  std::unordered_map<std::string, intptr_t> sockets_;  // by PeerKey
};

}  // namespace aisp
