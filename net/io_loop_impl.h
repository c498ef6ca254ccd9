// The Asio side of IoLoop, for the few .cc files of net/ that use Asio themselves.
#pragma once

#include <utility>  // before Asio: Boost 1.74 uses std::exchange without it

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <thread>

#include "net/io_loop.h"

namespace aisp {

struct IoLoop::Impl {
  // One thread runs it: Asio may leave out its locks between handlers, posting from elsewhere stays safe.
  boost::asio::io_context context{1};
  std::atomic<std::thread::id> runner{};
};

}  // namespace aisp
