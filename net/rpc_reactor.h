// The gRPC side of the calls of an InferenceServer: reactors, and the register of those that are alive. Inside net/ only (it brings
// gRPC).
//
// A reactor is owned by the register from its creation to OnDone, and by the handle that the handler has. Its state is under its
// mutex; no lock is held while it posts or tells the register. Invariant: no operation is started after FinishOnce.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <unordered_set>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include "common/clock.h"
#include "net/inference_server.h"

namespace aisp {

inline grpc::Status ToGrpc(const Error& error) {
  if (error.code == Code::kOk) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(error.code), error.message};
}

class LiveRpc {
 public:
  virtual ~LiveRpc() = default;
  // Ends the call now, whatever is unsent.
  virtual void Abort(const Error& status) = 0;
  // Looks for a client that takes nothing.
  virtual void CheckProgress(Instant now) = 0;
};

// Which calls are alive. Any thread.
class LiveRpcs {
 public:
  // Owns `rpc` until Remove. Not OK: the call must end with this. `bounded`: is waited for by Drain; the others only watch.
  Error Admit(std::shared_ptr<LiveRpc> rpc, bool bounded, size_t limit);
  void Remove(const std::shared_ptr<LiveRpc>& rpc);
  std::vector<std::shared_ptr<LiveRpc>> All();
  void Stop();
  // `idle` is called once, when no bounded call is left; maybe from inside.
  void Drain(std::function<void()> idle);

 private:
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<LiveRpc>> bounded_;
  std::unordered_set<std::shared_ptr<LiveRpc>> watching_;
  bool stopped_ = false;
  bool draining_ = false;
  std::function<void()> idle_;
};

// Base: grpc::ServerUnaryReactor or grpc::ServerWriteReactor<Event>.
template <typename Base>
class RpcReactor : public Base,
                   public LiveRpc,
                   public std::enable_shared_from_this<RpcReactor<Base>> {
 public:
  using GoneHandler = std::function<void(RpcCall::Gone)>;

  RpcReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live)
      : context_(context), live_(std::move(live)) {}

  // Before the reactor is given to gRPC. `gone` is called from any thread, at most once.
  void OnGone(GoneHandler gone) { gone_ = std::move(gone); }

  void AddHeader(const std::string& name, const std::string& value) {
    const std::lock_guard lock(mutex_);
    if (!finished_) context_->AddInitialMetadata(name, value);
  }
  void Abort(const Error& status) override {
    const std::lock_guard lock(mutex_);
    FinishOnce(ToGrpc(status));
  }
  void CheckProgress(Instant) override {}

  void OnCancel() override { Lose(RpcCall::Gone::kClosed); }
  void OnDone() override { live_->Remove(this->shared_from_this()); }

 protected:
  // Under the mutex.
  void FinishOnce(const grpc::Status& status) {
    if (!std::exchange(finished_, true)) this->Finish(status);
  }
  void AddTrailers(const RpcMetadata& trailers) {
    if (finished_) return;
    for (const auto& [name, value] : trailers) context_->AddTrailingMetadata(name, value);
  }
  void Lose(RpcCall::Gone why) {
    GoneHandler gone;
    {
      const std::lock_guard lock(mutex_);
      if (!finished_ && why == RpcCall::Gone::kSlowReader) context_->TryCancel();
      FinishOnce(grpc::Status::CANCELLED);
      gone = std::exchange(gone_, nullptr);
    }
    if (gone) gone(why);
  }

  std::mutex mutex_;
  grpc::CallbackServerContext* const context_;
  bool finished_ = false;

 private:
  const std::shared_ptr<LiveRpcs> live_;
  GoneHandler gone_;
};

template <typename Response>
class UnaryReactor final : public RpcReactor<grpc::ServerUnaryReactor> {
 public:
  UnaryReactor(grpc::CallbackServerContext* context, Response* response,
               std::shared_ptr<LiveRpcs> live)
      : RpcReactor(context, std::move(live)), response_(response) {}

  void End(const Error& status, const RpcMetadata& trailers, Response* response) {
    const std::lock_guard lock(mutex_);
    if (finished_) return;
    AddTrailers(trailers);
    response_->Swap(response);
    FinishOnce(ToGrpc(status));
  }

 private:
  Response* const response_;  // gRPC's, until OnDone
};

template <typename Event>
class StreamReactor final : public RpcReactor<grpc::ServerWriteReactor<Event>> {
 public:
  StreamReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
                size_t max_unsent_bytes, Duration write_timeout)
      : RpcReactor<grpc::ServerWriteReactor<Event>>(context, std::move(live)),
        max_unsent_bytes_(max_unsent_bytes),
        write_timeout_(write_timeout) {}

  void Send(Event event, Instant now) {
    bool slow = false;
    {
      const std::lock_guard lock(this->mutex_);
      if (this->finished_ || ending_) return;
      const size_t bytes = event.ByteSizeLong();
      queue_.emplace_back(std::move(event), bytes);
      queued_bytes_ += bytes;
      slow = queued_bytes_ > max_unsent_bytes_ && queue_.size() > 1;
      if (!slow && !writing_) WriteNext(now);
    }
    if (slow) this->Lose(RpcCall::Gone::kSlowReader);
  }

  void End(const Error& status, const RpcMetadata& trailers) {
    const std::lock_guard lock(this->mutex_);
    if (this->finished_ || ending_) return;
    ending_ = true;
    end_status_ = ToGrpc(status);
    this->AddTrailers(trailers);
    if (!writing_) this->FinishOnce(end_status_);
  }

  void OnWriteDone(bool ok) override {
    const std::lock_guard lock(this->mutex_);
    writing_ = false;
    queued_bytes_ -= queue_.front().second;
    queue_.pop_front();
    if (this->finished_ || !ok) return;
    if (!queue_.empty()) {
      WriteNext(clock_.Now());
    } else if (ending_) {
      this->FinishOnce(end_status_);
    }
  }

  void CheckProgress(Instant now) override {
    {
      const std::lock_guard lock(this->mutex_);
      if (this->finished_ || !writing_ || now - write_since_ < write_timeout_) return;
    }
    this->Lose(RpcCall::Gone::kSlowReader);
  }

 private:
  void WriteNext(Instant now) {
    writing_ = true;
    write_since_ = now;
    grpc::WriteOptions options;
    if (queue_.size() > 1) options.set_buffer_hint();
    this->StartWrite(&queue_.front().first, options);
  }

  const size_t max_unsent_bytes_;
  const Duration write_timeout_;
  const SteadyClock clock_;
  std::deque<std::pair<Event, size_t>> queue_;  // the front is with gRPC while writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  Instant write_since_;
  bool ending_ = false;
  grpc::Status end_status_;
};

}  // namespace aisp
