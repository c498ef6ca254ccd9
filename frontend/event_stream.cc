#include "frontend/event_stream.h"

namespace aisp {
EventStream::EventStream(FrontendContext* context, std::shared_ptr<HttpExchange> exchange,
                         std::unique_ptr<AnswerEncoder> encoder, TenantShare tenant)
    : context_(context),
      exchange_(std::move(exchange)),
      encoder_(std::move(encoder)),
      tenant_(std::move(tenant)),
      last_write_(context->clock->Now()) {}

void EventStream::Queue(Event event) {
  if (busy_) {
    waiting_.push_back(std::move(event));
    return;
  }
  if (GiveToPool(&event)) return;
  event.write(encoder_.get(), &out_);
  Flush();
}

void EventStream::End() {
  ending_ = true;
  if (!busy_) exchange_->End();
}

void EventStream::Flush() {
  if (out_.empty()) return;
  exchange_->Write(out_);
  out_.clear();
  last_write_ = context_->clock->Now();
}

bool EventStream::GiveToPool(Event* event) {
  const size_t bytes = event->bytes;
  if (bytes <= kWrittenAtOnce) return false;
  busy_ = true;
  // Counted here as well, since the request that counted them may end before the pool is done.
  context_->answers_bytes += bytes;
  const auto write = std::make_shared<Write>(std::move(event->write));
  const bool taken = context_->pool->TrySubmit(
      bytes,
      [self = shared_from_this(), loop = context_->loop, bytes, write]() mutable {
        std::string events;
        (*write)(self->encoder_.get(), &events);
        *write = nullptr;
        // The loop's thread must release the last reference to the exchange.
        loop->Post([self = std::move(self), bytes, events = std::move(events)] {
          self->OnWritten(bytes, events);
        });
      },
      tenant_);
  if (taken) return true;
  // The pool is full: write it here rather than fail a finished answer.
  event->write = std::move(*write);
  context_->answers_bytes -= bytes;
  busy_ = false;
  return false;
}

void EventStream::OnWritten(size_t bytes, const std::string& events) {
  context_->answers_bytes -= bytes;
  busy_ = false;
  exchange_->Write(events);
  last_write_ = context_->clock->Now();
  while (!waiting_.empty()) {
    Event event = std::move(waiting_.front());
    waiting_.pop_front();
    if (GiveToPool(&event)) return Flush();
    event.write(encoder_.get(), &out_);
  }
  Flush();
  if (ending_) exchange_->End();
}

}  // namespace aisp
