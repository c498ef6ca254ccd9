// The gRPC side of an InferenceServer's calls: reactors, and the registry of live ones. For net/
// only (it includes gRPC).
//
// The registry owns a reactor from its creation to OnDone, as does the handle that the handler
// holds. Its state is under its mutex; no lock is held while it posts or calls the registry.
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

// Limit for a call's client metadata, in HTTP/2's accounting.
inline constexpr size_t kMaxMetadataBytes = 64 << 10;

// Why a call with such metadata is refused; OK when it is not. gRPC 1.51 checks only each frame by
// itself, and a call keeps its metadata until its end.
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
  // Ends the call now and drops unsent messages.
  virtual void Abort(const Error& status) = 0;
  // As Abort, but also ends a call whose client does not read the pending message.
  virtual void Evict(const Error& status) { Abort(status); }
  // Ends the call if its client takes nothing.
  virtual void CheckProgress(Instant now) = 0;
};

// The live calls. Any thread.
class LiveRpcs {
 public:
  // Owns `rpc` until Remove. An error: end the call with it. `bounded`: a call that Drain waits
  // for; others only watch.
  Error Admit(std::shared_ptr<LiveRpc> rpc, bool bounded, size_t limit);
  void Remove(const std::shared_ptr<LiveRpc>& rpc);
  std::vector<std::shared_ptr<LiveRpc>> All();
  void Stop();
  // Ends calls that only watch, which would keep connections open, and admits no more.
  void EndWatching();
  // Calls `idle` once, when no bounded call is left; possibly before it returns.
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

// Base: a gRPC reactor class.
template <typename Base>
class RpcReactor : public Base,
                   public LiveRpc,
                   public std::enable_shared_from_this<RpcReactor<Base>> {
 public:
  using GoneHandler = std::function<void(RpcCall::Gone)>;

  RpcReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live)
      : context_(context), live_(std::move(live)) {}

  // Call before gRPC gets the reactor. `gone` is called at most once, from any thread.
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
  // Call under the mutex.
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
  bool cancelled_ = false;  // before its end was written; a later reset does not matter

 private:
  const std::shared_ptr<LiveRpcs> live_;
  GoneHandler gone_;
};

struct RpcTimes {
  Duration read{};   // for a whole message
  Duration write{};  // for min_taken_bytes of the pending output
  size_t min_taken_bytes = 1;
};

// A call with one message from the client. For gRPC it is a bidirectional stream, since only there
// the handler runs before the message is read: the head (its key) is checked first, and the number
// of messages being read is bounded.
template <typename Request, typename Event>
class CallReactor : public RpcReactor<grpc::ServerBidiReactor<Request, Event>> {
 public:
  // Receives the complete message; null when it was not read.
  using Taker = std::function<void(std::unique_ptr<Request>)>;

  CallReactor(grpc::CallbackServerContext* context, std::shared_ptr<LiveRpcs> live,
              std::shared_ptr<RpcIntake> intake, const RpcTimes& times)
      : RpcReactor<grpc::ServerBidiReactor<Request, Event>>(context, std::move(live)),
        times_(times),
        intake_(std::move(intake)) {}

  // Call before gRPC gets the reactor. `came` is called at most once, from any thread: when the
  // message is complete, or the call ended with an answer before its client reset it.
  void OnCameToSomething(std::function<void()> came) { came_ = std::move(came); }

  // Call once. `take` runs on a gRPC thread with the complete message; the call ends by itself if
  // it cannot be read. Before, `over` is told whether the message is complete or was given up.
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
    // gRPC's last callback: now it is known whether the call was cancelled.
    if (!this->cancelled_) CameToSomething();
    RpcReactor<grpc::ServerBidiReactor<Request, Event>>::OnDone();
  }

 protected:
  // Time in which the client must take `bytes`.
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
  std::function<void(bool)> over_;  // set until the message is complete or given up
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

  // A client that does not read would keep the answer forever.
  void CheckProgress(Instant now) override {
    CallReactor<Request, Response>::CheckProgress(now);
    const std::lock_guard lock(this->mutex_);
    if (sent_ != kNever && now - sent_ >= this->TimeToTake(response_.ByteSizeLong()))
      this->context_->TryCancel();
  }

 private:
  Response response_;  // gRPC's from End to OnDone
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
  std::deque<std::pair<Event, size_t>> queue_;  // gRPC writes the front while writing_
  size_t queued_bytes_ = 0;
  bool writing_ = false;
  // Start of the period in which output has been pending, and what the client took in it.
  Instant window_;
  size_t taken_ = 0;
  bool ending_ = false;
  grpc::Status end_status_;
};

}  // namespace aisp
