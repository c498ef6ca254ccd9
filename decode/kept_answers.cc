#include "decode/kept_answers.h"

#include <algorithm>

#include "proto/answer_key.h"

namespace aisp {
namespace {

// Tokens per message, far below a link's limit even with logprobs.
constexpr int kPieceTokens = 256;
// Bytes of an answer besides its tokens.
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

// Appends `event` to `piece`.
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
  // A shared prompt is not part of `tokens`.
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
  // Logprobs of tokens from a lost worker are unknown here.
  if (!emitted.empty() && WantsLogprobs(wire)) return std::nullopt;
  while (answers_.size() >= options_.max_answers) {
    if (!DropOldest(wire.tenant().name())) return std::nullopt;
  }
  Answer& answer = answers_[name];
  answer.tenant = wire.tenant().name();
  answer.key = wire.answer_key();
  answer.running = request;
  ++shelves_[answer.tenant].answers;
  Grow(&answer, kOverhead + answer.tenant.size() + answer.key.ByteSizeLong());
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
    // In memory a logprob is an object with two lists, twice its size on the wire.
    const size_t more = sizeof(v1::TokenEvent) + 2 * event.ByteSizeLong();
    Grow(&answer, more);
  }
  if (event.finish() == v1::FINISH_STOP || event.finish() == v1::FINISH_LENGTH) {
    if (answer.said.empty()) answer.said.emplace_back();
    answer.said.back().set_finish(event.finish());
    answer.ended = true;
  }
  while (bytes_ > options_.max_bytes && DropOldest(answer.tenant)) {
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
  shelves_[running->tenant].idle.emplace_back(now, name);
}

void KeptAnswers::Grow(Answer* answer, size_t bytes) {
  answer->bytes += bytes;
  shelves_[answer->tenant].bytes += bytes;
  bytes_ += bytes;
}

void KeptAnswers::Drop(const Hash128& name) {
  const auto it = answers_.find(name);
  const auto shelf = shelves_.find(it->second.tenant);
  bytes_ -= it->second.bytes;
  shelf->second.bytes -= it->second.bytes;
  if (--shelf->second.answers == 0) shelves_.erase(shelf);
  answers_.erase(it);
  news_[name] = false;
}

const Hash128* KeptAnswers::Oldest(Shelf* shelf) {
  for (; !shelf->idle.empty(); shelf->idle.pop_front()) {
    const auto& [since, name] = shelf->idle.front();
    const auto it = answers_.find(name);
    if (it != answers_.end() && it->second.since == since) return &name;
  }
  return nullptr;
}

double KeptAnswers::ShareOf(const Shelf& shelf) const {
  return static_cast<double>(shelf.answers) / static_cast<double>(options_.max_answers) +
         static_cast<double>(shelf.bytes) / static_cast<double>(options_.max_bytes);
}

// A tenant's answers never evict those of a tenant with fewer.
bool KeptAnswers::DropOldest(const std::string& tenant) {
  const Hash128* found = nullptr;
  const auto own = shelves_.find(tenant);
  const double least = own == shelves_.end() ? 0 : ShareOf(own->second);
  double most = 0;
  for (auto& [name, shelf] : shelves_) {
    const double share = ShareOf(shelf);
    if (share < least || share <= most) continue;
    const Hash128* const oldest = Oldest(&shelf);
    if (oldest == nullptr) continue;
    found = oldest;
    most = share;
  }
  if (found == nullptr) return false;
  ++dropped_;
  Drop(Hash128(*found));
  return true;
}

Instant KeptAnswers::NextExpiry() const {
  Instant next = kNever;
  for (const auto& [tenant, shelf] : shelves_) {
    if (!shelf.idle.empty()) next = std::min(next, shelf.idle.front().first + options_.window);
  }
  return next;
}

void KeptAnswers::Expire(Instant now) {
  std::vector<Hash128> expired;
  for (auto& [tenant, shelf] : shelves_) {
    while (!shelf.idle.empty() && shelf.idle.front().first + options_.window <= now) {
      const auto [since, name] = shelf.idle.front();
      shelf.idle.pop_front();
      const auto it = answers_.find(name);
      if (it != answers_.end() && it->second.since == since) expired.push_back(name);
    }
  }
  for (const Hash128& name : expired) Drop(name);
}

void KeptAnswers::Clear() {
  answers_.clear();
  shelves_.clear();
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
