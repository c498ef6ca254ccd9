#include "simulate/replicas.h"

namespace aisp::simulate {

void NameForWorker(const Replica& router, v1::RouterMessage* message) {
  if (message->has_generate()) {
    v1::GenerateRequest& generate = *message->mutable_generate();
    generate.set_request_id(router.ToWorker(generate.request_id()));
  } else if (message->has_cancel()) {
    v1::CancelRequest& cancel = *message->mutable_cancel();
    cancel.set_request_id(router.ToWorker(cancel.request_id()));
  }
}

v1::WorkerMessage HeardBy(const Replica& router, const v1::WorkerMessage& message) {
  v1::WorkerMessage heard;
  if (message.has_tokens()) {
    for (const v1::TokenEvent& event : message.tokens().events()) {
      if (!router.Owns(event.request_id())) continue;
      v1::TokenEvent& own = *heard.mutable_tokens()->add_events();
      own = event;
      own.set_request_id(router.Own(event.request_id()));
    }
    return heard;
  }
  heard = message;
  if (!message.has_draining()) return heard;
  heard.mutable_draining()->clear_not_started();
  for (const uint64_t id : message.draining().not_started()) {
    if (router.Owns(id)) heard.mutable_draining()->add_not_started(router.Own(id));
  }
  return heard;
}

}  // namespace aisp::simulate
