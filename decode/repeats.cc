// Repeats kept answers to requests under the same key.
#include <algorithm>

#include "common/log.h"
#include "decode/decode_role_impl.h"
#include "proto/hash_wire.h"

namespace aisp {
namespace {

// Names per message, far below a link's limit.
constexpr size_t kMostNames = 8192;

// Whether the tokens in `wire` match those sent; only then is it the same answer.
bool Agrees(const KeptAnswers::Answer& answer, const v1::GenerateRequest& wire) {
  const std::span<const int32_t> emitted = EmittedTokens(wire);
  size_t at = 0;
  for (const v1::TokenEvent& piece : answer.said) {
    for (const int32_t token : piece.tokens()) {
      if (at == emitted.size()) return true;
      if (emitted[at++] != token) return false;
    }
  }
  return at == emitted.size();
}

// Makes `wire` ask for what follows.
void SkipSaid(const KeptAnswers::Answer& answer, v1::GenerateRequest* wire) {
  size_t known = EmittedTokens(*wire).size();
  for (const v1::TokenEvent& piece : answer.said) {
    const auto tokens = static_cast<size_t>(piece.tokens_size());
    const size_t skip = std::min(known, tokens);
    known -= skip;
    wire->mutable_tokens()->Add(piece.tokens().begin() + static_cast<std::ptrdiff_t>(skip),
                                piece.tokens().end());
    if (!piece.has_prompt_logprobs()) continue;
    const v1::PromptLogprobs& scored = piece.prompt_logprobs();
    wire->set_prompt_logprobs_from(scored.first_position() +
                                   static_cast<uint32_t>(scored.logprobs_size()));
  }
}

}  // namespace

bool DecodeRole::Impl::SayAgain(LinkId link, v1::GenerateRequest* wire) {
  if (!wire->has_answer_key()) return false;
  const KeptAnswers::Answer* const answer = answers.Find(*wire);
  if (answer == nullptr) return false;
  if (answer->key.body() != wire->answer_key().body()) {
    repeats_refused.Add();
    Refuse(link, *wire,
           Error{Code::kAlreadyExists,
                 "another request was sent under this idempotency-key; give each request a key of "
                 "its own, and send it again unchanged"},
           /*handed_back=*/false);
    return true;
  }
  if (!Agrees(*answer, *wire)) {
    wire->clear_answer_key();
    return false;
  }
  for (const v1::TokenEvent& piece : answer->said) {
    v1::WorkerMessage message;
    v1::TokenEvent* event = message.mutable_tokens()->add_events();
    *event = piece;
    event->set_request_id(wire->request_id());
    shell->Send(link, std::move(message));
  }
  LogInfo("answer said again", {{"request", wire->trace_id()},
                                {"choice", wire->choice()},
                                {"ended", answer->ended},
                                {"running", answer->running.has_value()}});
  if (answer->ended) {
    repeated_ended.Add();
    return true;
  }
  if (answer->running) {
    repeated_running.Add();
    DecodeRequest& running = requests.at(*answer->running);
    AddReader(running, {link, wire->request_id()});
    // A repeated request has its own deadline; the first one's is enforced by its router.
    running.deadline = std::max(running.deadline, DeadlineOf(*wire, deps.clock->Now()));
    deps.engine->Prolong(running.sequence, running.deadline);
    return true;
  }
  repeated_resumed.Add();
  SkipSaid(*answer, wire);
  return false;
}

void DecodeRole::Impl::Keep(const v1::GenerateRequest& wire, DecodeRequest* request) {
  if (!wire.has_answer_key()) return;
  request->kept = answers.Start(wire, request->key);
  ReportKept();
}

void DecodeRole::Impl::AddReader(DecodeRequest& request, const RouterRequestId& reader) {
  request.readers.push_back(reader);
  by_router_id[reader] = request.key;
}

void DecodeRole::Impl::DropReader(const RouterRequestId& reader) {
  DecodeRequest* const request = Find(reader.first, reader.second);
  if (request == nullptr) return;
  if (request->readers.size() == 1) return Cancel(*request);
  std::erase(request->readers, reader);
  by_router_id.erase(reader);
}

void DecodeRole::Impl::ReportKept() {
  if (!answers.has_news()) return;
  answers_kept.Set(static_cast<double>(answers.size()));
  answer_bytes.Set(static_cast<double>(answers.bytes()));
  answers_dropped.Add(static_cast<double>(answers.dropped() - answers_dropped_told));
  answers_dropped_told = answers.dropped();
  v1::WorkerMessage message;
  v1::KeptAnswers* told = message.mutable_kept_answers();
  for (const auto& [name, kept] : answers.TakeNews())
    (kept ? told->add_kept() : told->add_dropped())->assign(HashToWire(name));
  for (const LinkId link : shell->AttachedLinks()) shell->Send(link, message);
}

void DecodeRole::Impl::ReportAllKept(LinkId link) {
  const std::vector<Hash128> names = answers.Names();
  for (size_t begin = 0; begin < names.size(); begin += kMostNames) {
    v1::WorkerMessage message;
    v1::KeptAnswers* told = message.mutable_kept_answers();
    told->set_whole(begin == 0);
    const size_t end = std::min(names.size(), begin + kMostNames);
    for (size_t i = begin; i < end; ++i) told->add_kept(HashToWire(names[i]));
    shell->Send(link, std::move(message));
  }
}

}  // namespace aisp
