// LoopTurns: work that takes a millisecond of the loop and that strangers can ask for, such as the
// first step of TLS: one piece at a time, and whatever else is ready goes before the next one.
// Inside net/ only (it brings Asio). Loop thread only.
#pragma once

#include "net/io_loop_impl.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <memory>
#include <utility>

namespace aisp {

class LoopTurns : public std::enable_shared_from_this<LoopTurns> {
 public:
  // Holds the turn until it is destroyed.
  class Turn {
   public:
    explicit Turn(std::shared_ptr<LoopTurns> turns) : turns_(std::move(turns)) {}
    Turn(Turn&& other) noexcept = default;
    ~Turn() {
      if (turns_) turns_->Next();
    }

   private:
    std::shared_ptr<LoopTurns> turns_;
  };

  boost::asio::awaitable<Turn> Take(boost::asio::any_io_executor executor) {
    if (std::exchange(taken_, true)) {
      auto timer = std::make_shared<boost::asio::steady_timer>(
          executor, boost::asio::steady_timer::time_point::max());
      waiting_.push_back(timer);
      boost::system::error_code woken;
      co_await timer->async_wait(boost::asio::redirect_error(boost::asio::use_awaitable, woken));
    }
    executor_ = std::move(executor);
    co_return Turn(shared_from_this());
  }

 private:
  void Next() {
    boost::asio::post(executor_, [self = shared_from_this()] {
      if (self->waiting_.empty()) {
        self->taken_ = false;
        return;
      }
      self->waiting_.front()->cancel();
      self->waiting_.pop_front();
    });
  }

  bool taken_ = false;
  boost::asio::any_io_executor executor_;
  std::deque<std::shared_ptr<boost::asio::steady_timer>> waiting_;
};

}  // namespace aisp
