#include "net/io_loop_impl.h"

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/steady_timer.hpp>
#include <utility>

#include "common/check.h"

namespace aisp {

namespace {

class AsioTimer final : public EventLoop::Timer, public std::enable_shared_from_this<AsioTimer> {
 public:
  AsioTimer(std::shared_ptr<IoLoop::Impl> loop, std::function<void()> fn)
      : loop_(std::move(loop)), fn_(std::move(fn)), timer_(loop_->context) {}

  void Start(Instant when) {
    timer_.expires_at(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(when.ns)));
    timer_.async_wait([weak = weak_from_this()](const boost::system::error_code& ec) {
      const auto self = weak.lock();
      if (!self || ec) return;
      // `fn` may drop the handle and with it its own captures.
      const auto fn = std::exchange(self->fn_, nullptr);
      fn();
    });
  }

 private:
  std::shared_ptr<IoLoop::Impl> loop_;
  std::function<void()> fn_;
  boost::asio::steady_timer timer_;
};

}  // namespace

IoLoop::IoLoop() : impl_(std::make_shared<Impl>()) {}

IoLoop::~IoLoop() {
  // Timers may keep impl_ alive, but must not keep what was posted.
  std::vector<std::function<void()>> dropped;
  {
    const std::lock_guard lock(impl_->mutex);
    dropped.swap(impl_->posted);
  }
}

void IoLoop::Run() {
  AISP_CHECK_MSG(impl_->runner.load() == std::thread::id(), "IoLoop::Run is called once");
  impl_->runner.store(std::this_thread::get_id());
  const auto work = boost::asio::make_work_guard(impl_->context);
  impl_->context.run();
  impl_->runner.store(std::thread::id());
}

void IoLoop::Stop() { impl_->context.stop(); }

void IoLoop::Impl::Post(std::function<void()> fn) {
  bool first = false;
  {
    const std::lock_guard lock(mutex);
    first = posted.empty();
    posted.push_back(std::move(fn));
  }
  if (first) boost::asio::post(context, [this] { RunPosted(); });
}

void IoLoop::Impl::RunPosted() {
  {
    const std::lock_guard lock(mutex);
    running.swap(posted);
  }
  for (auto& fn : running) {
    if (context.stopped()) break;
    // Destroys its captures now rather than with the batch.
    std::exchange(fn, nullptr)();
  }
  running.clear();
}

void IoLoop::Post(std::function<void()> fn) { impl_->Post(std::move(fn)); }

std::shared_ptr<EventLoop::Timer> IoLoop::RunAt(Instant when, std::function<void()> fn) {
  auto timer = std::make_shared<AsioTimer>(impl_, std::move(fn));
  if (when != kNever) timer->Start(when);
  return timer;
}

bool IoLoop::OnLoopThread() const { return impl_->runner.load() == std::this_thread::get_id(); }

}  // namespace aisp
