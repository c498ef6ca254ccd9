// Reports lost prefill workers to routers.
//
// A request may have caused the loss. Only a router knows whether the workers ended and which
// requests they had, so it is told of each; after two losses it decides about the request.
#include <algorithm>

#include "common/log.h"
#include "decode/codec.h"
#include "decode/decode_role_impl.h"

namespace aisp {
namespace {

// One loss may be chance: the next target is asked at once.
constexpr size_t kMostLost = 2;

}  // namespace

void DecodeRole::Impl::NoteAsked(DecodeRequest& request) const {
  const Writer& writer = *peers->Up(request.address);
  v1::PrefillTarget& asked = request.asked.emplace_back();
  asked.set_worker_id(writer.worker_id);
  asked.set_incarnation(writer.incarnation);
  asked.set_kv_address(writer.address);
}

void DecodeRole::Impl::ReportLost(const DecodeRequest& request) {
  for (const auto& [router, id] : request.readers) {
    v1::WorkerMessage message;
    v1::TokenEvent* event = message.mutable_tokens()->add_events();
    event->set_request_id(id);
    *event->add_lost_prefill() = request.lost.back();
    shell->Send(router, std::move(message));
  }
}

void DecodeRole::Impl::HandBack(DecodeRequest& request) {
  LogWarning("request handed back: prefill workers were lost with it",
             {{"request", request.trace_id}, {"lost", request.lost.size()}});
  for (const auto& [router, id] : request.readers) {
    v1::WorkerMessage message;
    v1::TokenEvent* event = message.mutable_tokens()->add_events();
    event->set_request_id(id);
    event->set_finish(v1::FINISH_ERROR);
    ErrorToWire({Code::kUnavailable, "prefill workers were lost while they had the request"},
                FaultOf(Code::kUnavailable), event->mutable_error());
    *event->mutable_lost_prefill() = {request.lost.begin(), request.lost.end()};
    shell->Send(router, std::move(message));
  }
  deps.engine->Cancel(request.sequence);
  EndAttempt(request);
  Erase(request);
}

void DecodeRole::Impl::OnSessionLost(const std::string& address, const Error& why) {
  prompts_out.erase(address);
  std::vector<RequestKey> keys;
  for (auto& [key, request] : requests) {
    const bool under_way = request.phase != RequestPhase::kRunning && request.address == address;
    if (under_way) keys.push_back(key);
    if (request.first_token_sent) continue;
    // Also one that was too slow, since it may still be computing the request.
    const auto it = std::find_if(
        request.asked.begin(), request.asked.end(),
        [&address](const v1::PrefillTarget& asked) { return asked.kv_address() == address; });
    if (it == request.asked.end()) continue;
    request.lost.push_back(std::move(*it));
    request.asked.erase(it);
    if (!under_way || request.lost.size() < kMostLost) ReportLost(request);
  }
  for (const RequestKey key : keys) {
    DecodeRequest& request = requests.at(key);
    if (request.lost.size() >= kMostLost) {
      HandBack(request);
    } else {
      FailRemote(request, "prefill worker lost: " + why.message);
    }
  }
  puller->OnSessionLost(address, why);
  speakers.erase(address);
}

}  // namespace aisp
