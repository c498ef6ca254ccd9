// EventStream: the events of a streamed answer on their way to its client, in the order in which
// they were said. Small ones are written at once. A large one (what is said of a whole prompt, the
// response as a whole behind its last token) is written by the pool; what is said meanwhile waits
// behind it. Outlives the request whose answer it is. The I/O thread.
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
  // What takes more is the pool's to write, as with whole answers.
  static constexpr size_t kWrittenAtOnce = 128 << 10;
  using Write = std::function<void(AnswerEncoder* encoder, std::string* out)>;

  // `tenant`: whose turn it is when the pool writes.
  EventStream(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
              std::unique_ptr<AnswerEncoder> encoder, TenantShare tenant);

  // Events are written by `write`, at once or later and then maybe on another thread: it owns what
  // it needs. `bytes`: of what it writes, about, where that is much.
  template <typename WriteNow>
  void Say(size_t bytes, WriteNow write) {
    if (busy_ || bytes > kWrittenAtOnce) return Queue({bytes, std::move(write)});
    write(encoder_.get(), &out_);
    Flush();
  }
  // No more is said.
  void End();
  // When something was given to the exchange last.
  Instant last_write() const { return last_write_; }

 private:
  struct Event {
    size_t bytes = 0;
    Write write;
  };
  void Queue(Event event);
  void Flush();
  // True: the pool writes it.
  bool GiveToPool(Event* event);
  void OnWritten(size_t bytes, const std::string& events);

  FrontendContext* const context_;
  const std::shared_ptr<HttpExchange> exchange_;
  const std::unique_ptr<AnswerEncoder> encoder_;  // the pool's while busy_
  const TenantShare tenant_;
  std::string out_;  // written and not given on yet
  Instant last_write_;
  std::deque<Event> waiting_;
  bool busy_ = false;
  bool ending_ = false;
};

}  // namespace aisp
