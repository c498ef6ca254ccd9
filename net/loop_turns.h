// LoopTurns: schedules work that blocks the loop for about a millisecond and that strangers can
// cause, such as the first step of TLS. One piece runs at a time, and other ready handlers run
// before the next. Waiters are served round-robin by address: a crowd at one address delays others
// by one piece each. For net/ only (it includes Asio). Loop thread only.
#pragma once

#include "net/io_loop_impl.h"

#include <boost/asio/awaitable.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/redirect_error.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <deque>
#include <map>
#include <memory>
#include <string>
#include <utility>

namespace aisp {

class LoopTurns : public std::enable_shared_from_this<LoopTurns> {
 public:
  // Holds the turn until destroyed.
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

  boost::asio::awaitable<Turn> Take(boost::asio::any_io_executor executor, std::string address) {
    if (std::exchange(taken_, true)) {
      auto timer = std::make_shared<boost::asio::steady_timer>(
          executor, boost::asio::steady_timer::time_point::max());
      waiting_[std::move(address)].push_back(timer);
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
      auto next = self->waiting_.upper_bound(self->last_);
      if (next == self->waiting_.end()) next = self->waiting_.begin();
      self->last_ = next->first;
      const auto timer = std::move(next->second.front());
      next->second.pop_front();
      if (next->second.empty()) self->waiting_.erase(next);
      timer->cancel();
    });
  }

  bool taken_ = false;
  boost::asio::any_io_executor executor_;
  std::map<std::string, std::deque<std::shared_ptr<boost::asio::steady_timer>>> waiting_;
  std::string last_;  // the address served last
};

}  // namespace aisp
