// The Asio side of IoLoop, for the .cc files of net/ that use Asio directly.
#pragma once

#include <utility>  // before Asio: Boost 1.74 uses std::exchange without it

#include <atomic>
#include <boost/asio/io_context.hpp>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "net/io_loop.h"

namespace aisp {

struct IoLoop::Impl {
  void Post(std::function<void()> fn);
  void RunPosted();

  // One thread runs it, so Asio may skip locks between handlers; posting from elsewhere stays safe.
  boost::asio::io_context context{1};
  std::atomic<std::thread::id> runner{};

  // Asio does not keep the order of posts from different threads: those of the running thread have
  // a queue of their own. A batch costs one wake-up.
  std::mutex mutex;
  std::vector<std::function<void()>> posted;
  std::vector<std::function<void()>> running;
};

}  // namespace aisp
