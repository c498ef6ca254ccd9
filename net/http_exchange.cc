#include "net/http_exchange.h"

#include "common/check.h"
#include "net/http_connection.h"

namespace aisp {

ServerExchange::ServerExchange(HttpRequest request, HttpConnection* connection, IoLoop* loop)
    : request_(std::move(request)), connection_(connection), loop_(loop) {}

ServerExchange::~ServerExchange() {
  if (connection_ != nullptr) std::exchange(connection_, nullptr)->ExchangeDropped(streaming_);
}

void ServerExchange::Respond(int status, HttpHeaders headers, std::string body) {
  AISP_CHECK_MSG(!answered_ && !streaming_, "one answer per exchange");
  answered_ = true;
  if (connection_ != nullptr) connection_->Respond(status, headers, std::move(body));
}

void ServerExchange::BeginStream(int status, HttpHeaders headers) {
  AISP_CHECK_MSG(!answered_ && !streaming_, "one answer per exchange");
  streaming_ = true;
  if (connection_ != nullptr) connection_->BeginStream(status, headers);
}

void ServerExchange::Write(std::string_view bytes) {
  AISP_CHECK_MSG(streaming_ && !answered_, "Write belongs between BeginStream and End");
  if (connection_ != nullptr) connection_->Write(bytes);
}

void ServerExchange::End() {
  AISP_CHECK_MSG(streaming_ && !answered_, "End comes once, after BeginStream");
  answered_ = true;
  if (connection_ != nullptr) connection_->End();
}

size_t ServerExchange::unsent_bytes() const {
  return connection_ == nullptr ? 0 : connection_->unsent_bytes();
}

void ServerExchange::OnDisconnect(std::function<void(Gone)> handler) {
  on_disconnect_ = std::move(handler);
  if (gone_) PostGone();
}

void ServerExchange::Lose(Gone why) {
  connection_ = nullptr;
  gone_ = true;
  why_ = why;
  if (on_disconnect_) PostGone();
}

void ServerExchange::PostGone() {
  loop_->Post([weak = weak_from_this()] {
    const auto self = weak.lock();
    if (!self) return;
    if (const auto handler = std::exchange(self->on_disconnect_, nullptr)) handler(self->why_);
  });
}

}  // namespace aisp
