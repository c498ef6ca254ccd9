#include "decode/kept_answers.h"

#include <algorithm>

#include "proto/answer_key.h"

namespace aisp {
namespace {

// So much of one goes into a message: far below what a link takes, also with logprobs.
constexpr int kPieceTokens = 256;
// What an answer takes beside what it says.
constexpr size_t kOverhead = 512;

Hash128 NameOf(const v1::GenerateRequest& wire) {
  return AnswerDigest(wire.tenant().name(), wire.answer_key().key(), wire.answer_key().index());
}

bool Holds(const KeptAnswers::Answer& answer, const v1::GenerateRequest& wire) {
  return answer.tenant == wire.tenant().name() && answer.key.key() == wire.answer_key().key() &&
         answer.key.index() == wire.answer_key().index();
}

bool WantsLogprobs(const v1::GenerateRequest& wire) {
  return wire.has_prompt_logprobs() || (wire.has_sampling() && wire.sampling().num_logprobs() >= 0);
}

int PieceSize(const v1::TokenEvent& piece) {
  return piece.tokens_size() + piece.prompt_logprobs().logprobs_size();
}

// `event` behind `piece`.
void Join(const v1::TokenEvent& event, v1::TokenEvent* piece) {
  if (piece->tokens_size() == 0) piece->set_first_position(event.first_position());
  piece->mutable_tokens()->MergeFrom(event.tokens());
  piece->mutable_logprobs()->MergeFrom(event.logprobs());
  if (event.has_prompt_logprobs()) {
    v1::PromptLogprobs* prompt = piece->mutable_prompt_logprobs();
    if (prompt->logprobs_size() == 0)
      prompt->set_first_position(event.prompt_logprobs().first_position());
    prompt->mutable_logprobs()->MergeFrom(event.prompt_logprobs().logprobs());
  }
  if (event.has_timing()) *piece->mutable_timing() = event.timing();
  if (event.has_drafts()) *piece->mutable_drafts() = event.drafts();
  piece->set_preemptions(event.preemptions());
}

}  // namespace

std::span<const int32_t> EmittedTokens(const v1::GenerateRequest& wire) {
  const std::span<const int32_t> tokens(wire.tokens().data(),
                                        static_cast<size_t>(wire.tokens_size()));
  // A shared prompt is all of it.
  if (wire.prompt_id() != 0) return tokens;
  return tokens.subspan(std::min<size_t>(wire.prompt_tokens(), tokens.size()));
}

const KeptAnswers::Answer* KeptAnswers::Find(const v1::GenerateRequest& wire) const {
  const auto it = answers_.find(NameOf(wire));
  return it == answers_.end() || !Holds(it->second, wire) ? nullptr : &it->second;
}

std::optional<Hash128> KeptAnswers::Start(const v1::GenerateRequest& wire, RequestKey request) {
  if (options_.window <= Duration{} || wire.pooling() != v1::POOL_NONE) return std::nullopt;
  const Hash128 name = NameOf(wire);
  if (const auto it = answers_.find(name); it != answers_.end()) {
    if (!Holds(it->second, wire) || it->second.running || it->second.ended) return std::nullopt;
    it->second.running = request;
    it->second.since = kNever;
    return name;
  }
  const std::span<const int32_t> emitted = EmittedTokens(wire);
  // What belongs to tokens of a worker that was lost is not known here.
  if (!emitted.empty() && WantsLogprobs(wire)) return std::nullopt;
  while (answers_.size() >= options_.max_answers) {
    if (!DropOldest()) return std::nullopt;
  }
  Answer& answer = answers_[name];
  answer.tenant = wire.tenant().name();
  answer.key = wire.answer_key();
  answer.running = request;
  answer.bytes = kOverhead + answer.tenant.size() + answer.key.ByteSizeLong();
  bytes_ += answer.bytes;
  news_[name] = true;
  if (!emitted.empty()) {
    v1::TokenEvent event;
    event.set_first_position(wire.prompt_tokens());
    event.mutable_tokens()->Add(emitted.begin(), emitted.end());
    Append(name, request, event);
  }
  return name;
}

KeptAnswers::Answer* KeptAnswers::RunningBy(const Hash128& name, RequestKey request) {
  const auto it = answers_.find(name);
  return it == answers_.end() || it->second.running != request ? nullptr : &it->second;
}

void KeptAnswers::Append(const Hash128& name, RequestKey request, const v1::TokenEvent& event) {
  Answer* const running = RunningBy(name, request);
  if (running == nullptr) return;
  Answer& answer = *running;
  if (PieceSize(event) > 0) {
    if (answer.said.empty() || PieceSize(answer.said.back()) >= kPieceTokens)
      answer.said.emplace_back();
    Join(event, &answer.said.back());
    // In memory a logprob is an object with two lists; on the wire it is half of that.
    const size_t more = sizeof(v1::TokenEvent) + 2 * event.ByteSizeLong();
    answer.bytes += more;
    bytes_ += more;
  }
  if (event.finish() == v1::FINISH_STOP || event.finish() == v1::FINISH_LENGTH) {
    if (answer.said.empty()) answer.said.emplace_back();
    answer.said.back().set_finish(event.finish());
    answer.ended = true;
  }
  while (bytes_ > options_.max_bytes && DropOldest()) {
  }
  if (bytes_ <= options_.max_bytes) return;
  ++dropped_;
  Drop(name);
}

void KeptAnswers::Stop(const Hash128& name, RequestKey request, Instant now) {
  Answer* const running = RunningBy(name, request);
  if (running == nullptr) return;
  if (running->said.empty()) return Drop(name);
  running->running.reset();
  running->since = now;
  idle_.emplace_back(now, name);
}

void KeptAnswers::Drop(const Hash128& name) {
  const auto it = answers_.find(name);
  bytes_ -= it->second.bytes;
  answers_.erase(it);
  news_[name] = false;
}

bool KeptAnswers::DropOldest() {
  while (!idle_.empty()) {
    const auto [since, name] = idle_.front();
    idle_.pop_front();
    const auto it = answers_.find(name);
    if (it == answers_.end() || it->second.since != since) continue;
    ++dropped_;
    Drop(name);
    return true;
  }
  return false;
}

void KeptAnswers::Expire(Instant now) {
  while (!idle_.empty() && idle_.front().first + options_.window <= now) {
    const auto [since, name] = idle_.front();
    idle_.pop_front();
    const auto it = answers_.find(name);
    if (it != answers_.end() && it->second.since == since) Drop(name);
  }
}

void KeptAnswers::Clear() {
  answers_.clear();
  idle_.clear();
  news_.clear();
  bytes_ = 0;
}

std::vector<Hash128> KeptAnswers::Names() const {
  std::vector<Hash128> names;
  names.reserve(answers_.size());
  for (const auto& [name, answer] : answers_) names.push_back(name);
  return names;
}

}  // namespace aisp
