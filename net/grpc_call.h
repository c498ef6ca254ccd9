// One gRPC stream as a link: the send queue, the pacing of reads, and the two reactors that connect
// them to gRPC's callbacks. For net/ only (it includes gRPC).
//
// A GrpcCall is shared by the endpoint's table of links, the reactor and posted functions. The
// reactor belongs to gRPC, deletes itself in OnDone and is reachable from its call only until then
// (`stream_`, under the mutex). Owner's thread: Send, Close, Consumed. Any thread: Abort. gRPC's
// threads: the rest. No lock is held while an inbox posts, except where the order of posts depends
// on it; inboxes never call back into a call under their own lock.
//
// Bounds: queued messages and bytes (above them the link is aborted; above half of them an offered
// message is refused), and received messages that the owner has not consumed (above them reading
// stops, and HTTP/2 flow control stops the sender).
#pragma once

#include <algorithm>
#include <condition_variable>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <unordered_set>
#include <utility>

#include <grpcpp/grpcpp.h>
#include <grpcpp/support/client_callback.h>
#include <grpcpp/support/server_callback.h>

#include "common/result.h"
#include "net/connection_bytes.h"
#include "net/grpc_links.h"
#include "net/link_inbox.h"

namespace aisp {

// The operations a call uses on its gRPC stream; always under the call's mutex.
template <typename In, typename Out>
class GrpcStream {
 public:
  virtual void Read(In* into) = 0;
  virtual void Write(const Out* message, bool more_follows) = 0;
  // Everything was written: close our side of the stream.
  virtual void FinishWriting() = 0;
  // Ends the stream now; no Read, Write or FinishWriting follows. The peer receives `status` if
  // possible.
  virtual void End(const Error& status, bool drop_unsent) = 0;

 protected:
  ~GrpcStream() = default;
};

// The calls whose reactor exists, so that an endpoint can wait until gRPC has released them.
template <typename Call>
class LiveCalls {
 public:
  void Add(std::shared_ptr<Call> call) {
    const std::lock_guard lock(mutex_);
    calls_.insert(std::move(call));
  }
  void Remove(const std::shared_ptr<Call>& call) {
    const std::lock_guard lock(mutex_);
    calls_.erase(call);
    if (calls_.empty()) empty_.notify_all();
  }
  bool Contains(const std::shared_ptr<Call>& call) {
    const std::lock_guard lock(mutex_);
    return calls_.contains(call);
  }
  std::unordered_set<std::shared_ptr<Call>> All() {
    const std::lock_guard lock(mutex_);
    return calls_;
  }
  bool AwaitEmpty(std::chrono::milliseconds limit) {
    std::unique_lock lock(mutex_);
    return empty_.wait_for(lock, limit, [this] { return calls_.empty(); });
  }

 private:
  std::mutex mutex_;
  std::condition_variable empty_;
  std::unordered_set<std::shared_ptr<Call>> calls_;
};

template <typename In, typename Out>
class GrpcCall : public std::enable_shared_from_this<GrpcCall<In, Out>> {
 public:
  using Inbox = LinkInbox<In, std::shared_ptr<GrpcCall>>;
  using Live = LiveCalls<GrpcCall>;

  GrpcCall(LinkId link, const GrpcLinkOptions& options, std::shared_ptr<Inbox> inbox,
           std::shared_ptr<Live> live)
      : id(link), options_(options), inbox_(std::move(inbox)), live_(std::move(live)) {}

  const LinkId id;

  // The stream now accepts operations; performs what the owner requested earlier.
  void Attach(GrpcStream<In, Out>* stream) {
    live_->Add(this->shared_from_this());
    const std::lock_guard lock(mutex_);
    stream_ = stream;
    if (ended_) return stream_->End(end_reason_, /*drop_unsent=*/false);
    stream_->Read(&incoming_);
    if (!queue_.empty()) {
      WriteNext();
    } else if (closing_) {
      stream_->FinishWriting();
    }
  }
  // From OnDone: the stream is about to be deleted ...
  void Detach() {
    const std::lock_guard lock(mutex_);
    ended_ = true;
    stream_ = nullptr;
    queue_.clear();
  }
  // ... and was deleted.
  void Retire() { live_->Remove(this->shared_from_this()); }

  void Send(Out message) {
    const Status queued =
        Queue(std::move(message), options_.max_queued_messages, options_.max_queued_bytes);
    if (queued) return;
    inbox_->Down(id, queued.error());
    Abort(queued.error());
  }
  // Messages that begin a request may use half of the queue, so those that end one always fit.
  Status Offer(Out message) {
    return Queue(std::move(message), options_.max_queued_messages / 2,
                 options_.max_queued_bytes / 2);
  }

  // Closes after the queued messages were sent.
  void Close() {
    const std::lock_guard lock(mutex_);
    if (ended_ || closing_) return;
    closing_ = true;
    if (!writing_ && stream_ != nullptr) stream_->FinishWriting();
  }
  bool closing() {
    const std::lock_guard lock(mutex_);
    return closing_;
  }

  // Ends the stream at once and drops unsent messages. Reports nothing.
  void Abort(const Error& why) { EndStream(why, /*drop_unsent=*/true); }
  // The peer has closed its side.
  void EndStream(const Error& why, bool drop_unsent) {
    const std::lock_guard lock(mutex_);
    if (ended_) return;
    ended_ = true;
    end_reason_ = why;
    if (stream_ != nullptr) stream_->End(why, drop_unsent);
  }

  void ReportUp(const std::string& peer_address) {
    const std::lock_guard lock(mutex_);
    if (ended_ && !up_reported_) return;
    if (!std::exchange(up_reported_, true)) inbox_->Up(id, peer_address);
  }
  void ReportDown(const Error& why) { inbox_->Down(id, why); }

  // From OnReadDone(true).
  void Received() {
    auto message = std::make_shared<In>(std::move(incoming_));
    const size_t bytes = message->ByteSizeLong();
    incoming_.Clear();
    inbox_->Message(id, std::move(message),
                    [self = this->shared_from_this(), bytes] { self->Consumed(bytes); });
    const std::lock_guard lock(mutex_);
    ++unconsumed_messages_;
    unconsumed_bytes_ += bytes;
    if (ended_) return;
    reading_paused_ = unconsumed_messages_ >= static_cast<int64_t>(options_.max_queued_messages) ||
                      unconsumed_bytes_ >= static_cast<int64_t>(options_.max_queued_bytes);
    if (!reading_paused_) stream_->Read(&incoming_);
  }

  // From OnWriteDone.
  void Written(bool ok) {
    const std::lock_guard lock(mutex_);
    writing_ = false;
    if (queue_.empty()) return;
    queued_bytes_ -= queue_.front().bytes;
    queue_.pop_front();
    if (ended_ || !ok) return;
    if (!queue_.empty()) {
      WriteNext();
    } else if (closing_) {
      stream_->FinishWriting();
    }
  }

 private:
  struct Queued {
    Out message;
    size_t bytes;
  };

  Status Queue(Out message, size_t most_messages, size_t most_bytes) {
    const size_t bytes = message.ByteSizeLong();
    const std::lock_guard lock(mutex_);
    if (ended_ || closing_) return {};
    if (const size_t most = std::min(options_.max_message_bytes, most_bytes); bytes > most) {
      return Fail(Code::kOutOfRange, "a message of " + std::to_string(bytes) +
                                         " bytes is larger than the limit of " +
                                         std::to_string(most));
    }
    if (queue_.size() >= most_messages || queued_bytes_ + bytes > most_bytes) {
      return ResourceExhausted(
          "the peer does not read: " + std::to_string(queue_.size()) + " messages and " +
          std::to_string(queued_bytes_) + " bytes were waiting for it (limits " +
          std::to_string(most_messages) + " and " + std::to_string(most_bytes) + ")");
    }
    queue_.push_back({std::move(message), bytes});
    queued_bytes_ += bytes;
    if (!writing_ && stream_ != nullptr) WriteNext();
    return {};
  }
  void WriteNext() {
    writing_ = true;
    stream_->Write(&queue_.front().message, queue_.size() > 1);
  }

  // The owner consumed a message. May run before Received counted it, so the counts are signed.
  void Consumed(size_t bytes) {
    const std::lock_guard lock(mutex_);
    --unconsumed_messages_;
    unconsumed_bytes_ -= static_cast<int64_t>(bytes);
    const bool calm =
        unconsumed_messages_ <= static_cast<int64_t>(options_.max_queued_messages / 2) &&
        unconsumed_bytes_ <= static_cast<int64_t>(options_.max_queued_bytes / 2);
    if (!reading_paused_ || ended_ || !calm) return;
    reading_paused_ = false;
    stream_->Read(&incoming_);
  }

  const GrpcLinkOptions options_;
  const std::shared_ptr<Inbox> inbox_;
  const std::shared_ptr<Live> live_;

  std::mutex mutex_;
  GrpcStream<In, Out>* stream_ = nullptr;
  bool ended_ = false;  // no operation may be started
  Error end_reason_;
  bool closing_ = false;  // the owner closed the link; the queue drains
  bool up_reported_ = false;
  bool writing_ = false;  // gRPC is writing queue_.front()
  std::deque<Queued> queue_;
  size_t queued_bytes_ = 0;
  In incoming_;  // gRPC's while a read is outstanding, then Received's
  bool reading_paused_ = false;
  int64_t unconsumed_messages_ = 0;
  int64_t unconsumed_bytes_ = 0;
};

inline grpc::Status ToGrpcStatus(const Error& error) {
  return {static_cast<grpc::StatusCode>(error.code), error.message};
}

// Initial metadata of an accepted link. gRPC distinguishes initial metadata from the trailers of a
// failed call by asserting that the latter is alone; a call cut in its middle violates that.
inline constexpr char kLinkUp[] = "aisp-link";

// Reports a stream's progress to ConnectionBytes. One message counts as awaited while the stream
// lives, also while reading pauses, since what the peer sends then waits in the window.
class StreamBytes {
 public:
  StreamBytes(std::shared_ptr<ConnectionBytes> bytes, std::string key)
      : bytes_(std::move(bytes)), key_(std::move(key)) {
    bytes_->OnReading(key_);
  }
  ~StreamBytes() { bytes_->OnRead(key_, /*whole=*/false); }
  StreamBytes(const StreamBytes&) = delete;
  StreamBytes& operator=(const StreamBytes&) = delete;

  void OnHead() { bytes_->OnHead(key_); }
  void OnMessage() {
    bytes_->OnRead(key_, /*whole=*/true);
    bytes_->OnReading(key_);
  }

 private:
  const std::shared_ptr<ConnectionBytes> bytes_;
  const std::string key_;
};

template <typename In, typename Out>
class ServerStream final : public grpc::ServerBidiReactor<In, Out>, public GrpcStream<In, Out> {
 public:
  using Call = GrpcCall<In, Out>;
  ServerStream(std::shared_ptr<Call> call, grpc::CallbackServerContext* context,
               std::shared_ptr<ConnectionBytes> bytes)
      : call_(std::move(call)),
        context_(context),
        bytes_(std::move(bytes), PeerKey(context->peer())) {
    context->AddInitialMetadata(kLinkUp, "1");
    this->StartSendInitialMetadata();
    call_->Attach(this);
  }

  void Read(In* into) override {
    if (!finished_) this->StartRead(into);
  }
  void Write(const Out* message, bool more_follows) override {
    grpc::WriteOptions options;
    if (more_follows) options.set_buffer_hint();
    this->StartWrite(message, options);
  }
  // Ends the stream with its status; what the client still sends is not read.
  void FinishWriting() override { FinishOnce(grpc::Status::OK); }
  void End(const Error& status, bool drop_unsent) override {
    if (drop_unsent) context_->TryCancel();
    FinishOnce(ToGrpcStatus(status));
  }

  void OnReadDone(bool ok) override {
    if (ok) {
      bytes_.OnMessage();
      return call_->Received();
    }
    const Error why{Code::kUnavailable, context_->IsCancelled()
                                            ? "the connection to the peer was lost"
                                            : "the peer closed the link"};
    call_->ReportDown(why);
    call_->EndStream(why, /*drop_unsent=*/false);
  }
  void OnWriteDone(bool ok) override { call_->Written(ok); }
  void OnCancel() override {
    const Error why{Code::kUnavailable, "the connection to the peer was lost"};
    call_->ReportDown(why);
    call_->EndStream(why, /*drop_unsent=*/false);
  }
  void OnDone() override {
    const std::shared_ptr<Call> call = call_;
    call->Detach();
    delete this;
    call->Retire();
  }

 private:
  void FinishOnce(const grpc::Status& status) {
    if (!std::exchange(finished_, true)) this->Finish(status);
  }

  const std::shared_ptr<Call> call_;
  grpc::CallbackServerContext* const context_;
  StreamBytes bytes_;
  bool finished_ = false;  // under the call's mutex
};

template <typename In, typename Out>
class ClientStream final : public grpc::ClientBidiReactor<Out, In>, public GrpcStream<In, Out> {
 public:
  using Call = GrpcCall<In, Out>;
  // `key` names the link in `bytes`. `soon` runs a function a little later, or never.
  using Soon = std::function<void(std::function<void()>)>;
  ClientStream(std::shared_ptr<Call> call, std::string address,
               std::shared_ptr<ConnectionBytes> bytes, const std::string& key, Soon soon)
      : call_(std::move(call)),
        address_(std::move(address)),
        bytes_(std::move(bytes), key),
        soon_(std::move(soon)) {}

  // `start` binds this reactor to a method of the service.
  template <typename Starter>
  void Start(Starter start) {
    start(&context_, this);
    // Allows operations from other threads until the hold is removed.
    this->AddHold();
    call_->Attach(this);
    this->StartCall();
  }

  void Read(In* into) override { this->StartRead(into); }
  void Write(const Out* message, bool more_follows) override {
    grpc::WriteOptions options;
    if (more_follows) options.set_buffer_hint();
    this->StartWrite(message, options);
  }
  void FinishWriting() override { this->StartWritesDone(); }
  void End(const Error&, bool drop_unsent) override {
    if (drop_unsent) context_.TryCancel();
    this->RemoveHold();
  }

  void OnReadInitialMetadataDone(bool ok) override {
    if (!ok) return;
    if (context_.GetServerInitialMetadata().contains(kLinkUp)) {
      bytes_.OnHead();
      return call_->ReportUp(address_);
    }
    // A peer of an older version, or a failed call. A failure is reported before `soon` runs.
    soon_([call = call_, address = address_] { call->ReportUp(address); });
  }
  void OnReadDone(bool ok) override {
    if (ok) {
      bytes_.OnMessage();
      call_->ReportUp(address_);
      return call_->Received();
    }
    call_->EndStream(Error(), /*drop_unsent=*/false);
  }
  void OnWriteDone(bool ok) override { call_->Written(ok); }
  void OnDone(const grpc::Status& status) override {
    const bool closed = status.ok();
    call_->ReportDown(Error{closed ? Code::kUnavailable : static_cast<Code>(status.error_code()),
                            closed ? "the peer " + address_ + " closed the link"
                                   : "link to " + address_ + ": " + status.error_message()});
    const std::shared_ptr<Call> call = call_;
    call->Detach();
    delete this;
    call->Retire();
  }

 private:
  const std::shared_ptr<Call> call_;
  // gRPC's own implementation aborts on certain input of a hostile peer; see kLinkUp.
  bool InternalTrailersOnly(const grpc_call*) const override { return false; }

  const std::string address_;
  StreamBytes bytes_;
  const Soon soon_;
  grpc::ClientContext context_;
};

}  // namespace aisp
