#include "tests/kvcache/transport/tcp_fake_owner.h"

#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <utility>

#include "common/threads.h"
#include "kvcache/transport/cookie.h"
#include "kvcache/transport/tcp_socket.h"
#include "tests/kvcache/transport/rig.h"

namespace aisp {

Instant Later() { return SteadyClock().Now() + kPatience; }

FakeOwner ConnectToFakeOwner(KvTransport& writer, const std::string& address,
                             const std::function<TcpHelloReply(int socket)>& reply) {
  FakeOwner owner;
  const UniqueFd listen = std::move(*ListenTcp(address, 0));
  Thread greeter("fake-owner", [&] {
    pollfd state{listen.get(), POLLIN, 0};
    EXPECT_EQ(poll(&state, 1, static_cast<int>(ToMs(kPatience))), 1);
    owner.socket = UniqueFd(accept4(listen.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    TcpHello hello;
    EXPECT_TRUE(ReceiveAll(owner.socket.get(), Room(hello), Later()).has_value());
    TcpHelloReply greeting = reply(owner.socket.get());
    EXPECT_TRUE(SendAll(owner.socket.get(), Room(greeting), Later()).has_value());
  });
  const Result<KvPeerId> peer =
      writer.Connect("tcp1 " + address + " " + std::to_string(*LocalPort(listen.get())) + " " +
                         NewCookie().ToHex(),
                     kPatience);
  greeter.Join();
  EXPECT_TRUE(peer.has_value());
  if (peer) owner.peer = *peer;
  return owner;
}

}  // namespace aisp
