#include "net/loop_turns.h"

#include <gtest/gtest.h>

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>
#include <boost/asio/io_context.hpp>

namespace aisp {
namespace {

namespace asio = boost::asio;

asio::awaitable<void> Work(std::shared_ptr<LoopTurns> turns, std::string address,
                           std::string* out) {
  const auto turn = co_await turns->Take(co_await asio::this_coro::executor, address);
  *out += address;
}

TEST(LoopTurns, ManyOfOneAddressDelayAnotherByOneEach) {
  asio::io_context loop;
  const auto turns = std::make_shared<LoopTurns>();
  std::string order;
  for (const char* address : {"a", "a", "a", "a", "a", "b", "b", "c"})
    asio::co_spawn(loop, Work(turns, address, &order), asio::detached);
  loop.run();
  // The first caller found no other one waiting.
  EXPECT_EQ(order, "aabcabaa");
}

}  // namespace
}  // namespace aisp
