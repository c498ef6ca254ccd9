// The gRPC side of the calls of an InferenceServer: reactors, and the register of those that are
// alive. Inside net/ only (it brings gRPC).
//
// A reactor is owned by the register from its creation to OnDone, and by the handle that the
// handler has. Its state is under its mutex; no lock is held while it posts or tells the register.
// Invariant: no operation is started after FinishOnce.
#pragma once

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/server_callback.h>

#include "common/clock.h"
#include "net/inference_server.h"
#include "net/rpc_intake.h"

namespace aisp {

inline grpc::Status ToGrpc(const Error& error) {
  if (error.code == Code::kOk) return grpc::Status::OK;
  return {static_cast<grpc::StatusCode>(error.code), error.message};
}

// Of the metadata that a client sends with a call, as HTTP/2 counts it.
inline constexpr size_t kMaxMetadataBytes = 64 << 10;

// Why a call with such a head is refused; OK when it is not. gRPC 1.51 asks of each frame by itself
// whether it is too large, and a call keeps its metadata until its end.
inline Error RefuseMetadata(const grpc::CallbackServerContext& context) {
  constexpr size_t kOfEach = 32;
  size_t bytes = 0;
  for (const auto& [name, value] : context.client_metadata())
    bytes += name.size() + value.size() + kOfEach;
  if (bytes <= kMaxMetadataBytes) return {Code::kOk, ""};
  return {Code::kResourceExhausted, "the call's metadata has " + std::to_string(bytes) +
                                        " bytes, at most " + std::to_string(kMaxMetadataBytes) +
                                        " are taken"};
}

class LiveRpc {
 public:
  virtual ~LiveRpc() = default;
  // Ends the call now, whatever is unsent.
  virtual void Abort(const Error& status) = 0;
  // As Abort, at once also where its client does not take what is being written.
  virtual void Evict(const Error& status) { Abort(status); }
  // Looks for a client that takes nothing.
  virtual void CheckProgress(Instant now) = 0;
};

// Which calls are alive. Any thread.
class LiveRpcs {
 public:
  // Owns `rpc` until Remove. Not OK: the call must end with this. `bounded`: is waited for by
  // Drain; the others only watch.
  Error Admit(std::shared_ptr<LiveRpc> rpc, bool bounded, size_t limit);
  void Remove(const std::shared_ptr<LiveRpc>& rpc);
  std::vector<std::shared_ptr<LiveRpc>> All();
  void Stop();
  // Ends those that only watch, which would keep their connections open, and admits no more.
  void EndWatching();
  // `idle` is called once, when no bounded call is left; maybe from inside.
  void Drain(std::function<void()> idle);

 private:
  std::mutex mutex_;
  std::unordered_set<std::shared_ptr<LiveRpc>> bounded_;
  std::unordered_set<std::shared_ptr<LiveRpc>> watching_;
  bool stopped_ = false;
  bool watching_ended_ = false;
  bool draining_ = false;
  std::function<void()> idle_;
};

// Base: a reactor class of gRPC.
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

  void OnCancel() override {
    {
      const std::lock_guard lock(mutex_);
      cancelled_ = true;
    }
    Lose(RpcCall::Gone::kClosed);
  }
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
  bool cancelled_ = false;  // before its end was written; after that a reset reaches nobody

 private:
  const std::shared_ptr<LiveRpcs> live_;
  GoneHandler gone_;
};

struct RpcTimes {
  Duration read{};   // for a whole message
  Duration write{};  // in which min_taken_bytes must be taken of what waits
  size_t min_taken_bytes = 1;
};

// A call of which the client sends one message. To gRPC it is a stream in both directions, because
// only of those the handler is told before the message: nothing of it is read before somebody
// looked at the head (its key), and how many are on their way is bounded.
template <typename Request, typename Event>
class CallReactor : public RpcReactor<grpc::ServerBidiReactor<Request, Event>> {
 public:
  // The whole message; null when it was not asked for.
  using Taker = std::function<void(std::unique_ptr<Request>)>;

  CallReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
              std::shared_ptr<RpcIntake> intake, const RpcTimes& times)
      : RpcReactor<grpc::ServerBidiReactor<Request, Event>>(context, std::move(live)),
        times_(times),
        intake_(std::move(intake)) {}

  // Before the reactor is given to gRPC. `came` is called from any thread, at most once: when the
  // message is whole, or when the call has ended with an answer and not with its client's reset.
  void OnCameToSomething(std::function<void()> came) { came_ = std::move(came); }

  // Once: `take` is called from a thread of gRPC when the message is whole. When it cannot be read
  // the call ends by itself. `over` hears before whether it is whole, or that nothing of it is
  // awaited any more.
  void Read(const std::string& party, Taker take, std::function<void(bool whole)> over) {
    const Instant now = clock_.Now();
    {
      const std::lock_guard lock(this->mutex_);
      over_ = std::move(over);
    }
    const auto weak = this->weak_from_this();
    const Status begun = intake_->Begin(number(), party, now, [weak](const Error& why) {
      if (const auto self = weak.lock()) self->Abort(why);
    });
    const std::lock_guard lock(this->mutex_);
    if (!begun) return this->FinishOnce(ToGrpc(begun.error()));
    if (this->finished_) return;
    take_ = std::move(take);
    message_ = std::make_unique<Request>();
    reading_since_ = now;
    this->StartRead(message_.get());
  }

  void OnReadDone(bool ok) override {
    ReadOver(ok);
    if (ok) CameToSomething();
    Taker take;
    std::unique_ptr<Request> message;
    {
      const std::lock_guard lock(this->mutex_);
      reading_since_ = kNever;
      take = std::exchange(take_, nullptr);
      if (this->finished_) return;
      if (!ok) {
        return this->FinishOnce({grpc::StatusCode::INVALID_ARGUMENT,
                                 "the call has no message; send one request message"});
      }
      message = std::move(message_);
      if (const Status fits = intake_->Whole(number(), message->SpaceUsedLong()); !fits)
        return this->FinishOnce(ToGrpc(fits.error()));
    }
    take(std::move(message));
  }

  void CheckProgress(Instant now) override {
    const std::lock_guard lock(this->mutex_);
    if (this->finished_ || reading_since_ == kNever || now - reading_since_ < times_.read) return;
    this->FinishOnce({grpc::StatusCode::DEADLINE_EXCEEDED,
                      "the request message was not whole within " +
                          std::to_string(ToMs(times_.read)) + " ms (http.read_timeout)"});
  }
  void OnDone() override {
    ReadOver(/*whole=*/false);
    intake_->End(number());
    // The last word of gRPC: whether it was cancelled is known.
    if (!this->cancelled_) CameToSomething();
    RpcReactor<grpc::ServerBidiReactor<Request, Event>>::OnDone();
  }

 protected:
  // In which so many bytes must have been taken.
  Duration TimeToTake(size_t bytes) const {
    const size_t least = std::max<size_t>(times_.min_taken_bytes, 1);
    return times_.write * static_cast<int64_t>(1 + bytes / least);
  }

  const SteadyClock clock_;
  const RpcTimes times_;

 private:
  void ReadOver(bool whole) {
    std::function<void(bool)> over;
    {
      const std::lock_guard lock(this->mutex_);
      over = std::exchange(over_, nullptr);
    }
    if (over) over(whole);
  }
  void CameToSomething() {
    std::function<void()> came;
    {
      const std::lock_guard lock(this->mutex_);
      came = std::exchange(came_, nullptr);
    }
    if (came) came();
  }
  RpcIntake::Call number() const { return reinterpret_cast<RpcIntake::Call>(this); }

  const std::shared_ptr<RpcIntake> intake_;
  Instant reading_since_ = kNever;
  std::unique_ptr<Request> message_;  // gRPC's while reading_since_ is set
  Taker take_;
  std::function<void(bool)> over_;  // until the message is whole or given up
  std::function<void()> came_;
};

template <typename Request, typename Response>
class UnaryReactor final : public CallReactor<Request, Response> {
 public:
  using CallReactor<Request, Response>::CallReactor;

  void End(const Error& status, const RpcMetadata& trailers, Response* response) {
    const std::lock_guard lock(this->mutex_);
    if (this->finished_) return;
    this->AddTrailers(trailers);
    if (status.code != Code::kOk) return this->FinishOnce(ToGrpc(status));
    response_.Swap(response);
    this->finished_ = true;
    sent_ = this->clock_.Now();
    this->StartWriteAndFinish(&response_, grpc::WriteOptions(), grpc::Status::OK);
  }

  // A client that takes nothing would keep the answer for ever.
  void CheckProgress(Instant now) override {
    CallReactor<Request, Response>::CheckProgress(now);
    const std::lock_guard lock(this->mutex_);
    if (sent_ != kNever && now - sent_ >= this->TimeToTake(response_.ByteSizeLong()))
      this->context_->TryCancel();
  }

 private:
  Response response_;  // gRPC's, from End to OnDone
  Instant sent_ = kNever;
};

template <typename Request, typename Event>
class StreamReactor final : public CallReactor<Request, Event> {
 public:
  StreamReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
                std::shared_ptr<RpcIntake> intake, const RpcTimes& times, size_t max_unsent_bytes)
      : CallReactor<Request, Event>(context, std::move(live), std::move(intake), times),
        max_unsent_bytes_(max_unsent_bytes) {}

  void Send(Event event, Instant now) {
    bool slow = false;
    {
      const std::lock_guard lock(this->mutex_);
      if (this->finished_ || ending_) return;
      const size_t bytes = event.ByteSizeLong();
      queue_.emplace_back(std::move(event), bytes);
      queued_bytes_ += bytes;
      slow = queued_bytes_ > max_unsent_bytes_ && queue_.size() > 1;
      if (!slow && !writing_) {
        window_ = now;
        taken_ = 0;
        WriteNext();
      }
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
    taken_ += queue_.front().second;
    queue_.pop_front();
    if (this->finished_ || !ok) return;
    if (!queue_.empty()) {
      WriteNext();
    } else if (ending_) {
      this->FinishOnce(end_status_);
    }
  }

  void CheckProgress(Instant now) override {
    CallReactor<Request, Event>::CheckProgress(now);
    {
      const std::lock_guard lock(this->mutex_);
      if (this->finished_ || !writing_ || now - window_ < this->times_.write) return;
      if (taken_ >= std::max<size_t>(this->times_.min_taken_bytes, 1)) {
        window_ = now;
        taken_ = 0;
        return;
      }
    }
    this->Lose(RpcCall::Gone::kSlowReader);
  }

 private:
  void WriteNext() {
    writing_ = true;
    grpc::WriteOptions options;
    if (queue_.size() > 1) options.set_buffer_hint();
    this->StartWrite(&queue_.front().first, options);
  }

  const size_t max_unsent_bytes_;
  std::deque<std::pair<Event, size_t>> queue_;  // the front is with gRPC while writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  // Something has waited for the client since then; what it took meanwhile.
  Instant window_;
  size_t taken_ = 0;
  bool ending_ = false;
  grpc::Status end_status_;
};

}  // namespace aisp
