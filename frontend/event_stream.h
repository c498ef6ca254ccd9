// EventStream: sends the events of a streamed answer to its client in order. Small events are
// written at once. A large one (a whole prompt's logprobs, a complete response object) is written
// on the pool, and later events wait for it. Outlives its request. The I/O thread.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "api/answer_encoder.h"
#include "frontend/generation_job.h"
#include "proto/http_exchange.h"

namespace aisp {

class EventStream final : public std::enable_shared_from_this<EventStream> {
 public:
  // Larger events are written on the pool, as are large whole answers.
  static constexpr size_t kWrittenAtOnce = 128 << 10;
  using Write = std::function<void(AnswerEncoder* encoder, std::string* out)>;

  // `tenant`: for the pool's fair scheduling.
  EventStream(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
              std::unique_ptr<AnswerEncoder> encoder, TenantShare tenant);

  // Queues events that `write` produces, now or later and possibly on another thread, so it must
  // own its data. `bytes`: approximate size if large, else 0.
  template <typename WriteNow>
  void Say(size_t bytes, WriteNow write) {
    if (busy_ || bytes > kWrittenAtOnce) return Queue({bytes, std::move(write)});
    write(encoder_.get(), &out_);
    Flush();
  }
  // Ends the stream: no more events.
  void End();
  // When data was last given to the exchange.
  Instant last_write() const { return last_write_; }

 private:
  struct Event {
    size_t bytes = 0;
    Write write;
  };
  void Queue(Event event);
  void Flush();
  // True when the pool accepted the event.
  bool GiveToPool(Event* event);
  void OnWritten(size_t bytes, const std::string& events);

  FrontendContext* const context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::unique_ptr<AnswerEncoder> encoder_;  // used by the pool while busy_
  const TenantShare tenant_;
  std::string out_;  // written but not yet sent
  Instant last_write_;
  std::deque<Event> waiting_;
  bool busy_ = false;
  bool ending_ = false;
};

}  // namespace aisp
