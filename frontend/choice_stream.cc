#include "frontend/choice_stream.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <utility>

namespace aisp {
namespace {

// UTF-8 continuation bytes do not start a code point.
size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

ChoiceStream::ChoiceStream(const Tokenizer* tokenizer, Options options, Listener* listener)
    : tokenizer_(tokenizer),
      options_(std::move(options)),
      listener_(listener),
      stops_(options_.stop, options_.include_stop) {
  if (tokenizer_ != nullptr)
    detokenizer_.emplace(*tokenizer_, options_.skip_special_tokens && !parses());
  if (options_.prompt_logprobs < 0) return;
  if (tokenizer_ != nullptr) prompt_text_.emplace(*tokenizer_, options_.skip_special_tokens);
  ChoiceLogprob first;
  first.known = false;
  first.token = options_.prompt.get().front();
  first.bytes = PieceOf(first.token);
  AddPromptToken(std::move(first));
}

bool ChoiceStream::Hidden(TokenId token) const {
  return parses() && options_.skip_special_tokens && tokenizer_->IsSpecial(token) &&
         !std::binary_search(options_.shown.begin(), options_.shown.end(), token);
}

void ChoiceStream::Parse(bool ended) {
  if (!parses()) return;
  // Push may extend the last part instead of adding one.
  size_t from = parts_.size();
  const size_t last_bytes = parts_.empty() ? 0 : parts_.back().text.size();
  options_.parser->Push(std::exchange(text_, {}), &parts_);
  if (ended) options_.parser->Finish(&parts_);
  if (from > 0 && parts_[from - 1].text.size() > last_bytes) --from;
  const bool grew = from < parts_.size();
  bool text_grew = false;
  for (; from < parts_.size(); ++from) {
    const AnswerPart::Kind kind = parts_[from].kind;
    const bool is_text = kind == AnswerPart::Kind::kContent;
    if (is_text && !in_text_) ++text_part_;
    in_text_ = is_text;
    text_grew = text_grew || is_text;
    called_ = called_ || kind == AnswerPart::Kind::kCall;
    if (kind != AnswerPart::Kind::kReasoning) {
      thought_over_ = true;
    } else if (!thought_over_) {
      reasoning_tokens_ = completion_tokens_;
    }
  }
  PlaceLogprobs(grew, text_grew, ended);
  if (finish_reason_ == "stop" && called_) finish_reason_ = "tool_calls";
}

// Assigns waiting logprobs to a text part: the one that this step extended, else to none (thinking
// or a call).
void ChoiceStream::PlaceLogprobs(bool grew, bool text_grew, bool ended) {
  if (!grew && !ended) return;
  const uint32_t part = text_grew || (!grew && in_text_) ? text_part_ : 0;
  for (; placed_ < logprobs_.size(); ++placed_) logprobs_[placed_].text_part = part;
}

std::vector<ChoiceLogprob> ChoiceStream::TakeLogprobs() {
  const auto end = logprobs_.begin() + static_cast<ptrdiff_t>(std::exchange(placed_, 0));
  std::vector<ChoiceLogprob> out(std::make_move_iterator(logprobs_.begin()),
                                 std::make_move_iterator(end));
  logprobs_.erase(logprobs_.begin(), end);
  return out;
}

void ChoiceStream::OnRouted(const RouteDecision& route) {
  decode_worker_ = route.decode_worker;
  listener_->OnChoiceRouted(*this, route);
}

std::string ChoiceStream::RouteTaken() const {
  if (!timing_) return "";
  const std::string& prefill = timing_->prefill_worker();
  return fmt::format("decode={} prefill={}", decode_worker_, prefill.empty() ? "local" : prefill);
}

void ChoiceStream::OnTokens(const v1::TokenEvent& event) {
  if (ended()) return;
  if (event.has_timing() && !timing_) timing_ = event.timing();
  preemptions_ = std::max(preemptions_, event.preemptions());
  if (event.has_drafts()) drafts_ = event.drafts();
  bool stopped = false;
  for (int i = 0; i < event.tokens_size() && !stopped; ++i) {
    ++completion_tokens_;
    if (i < event.logprobs_size()) AddLogprob(event.tokens(i), event.logprobs(i));
    if (options_.keep_token_ids) token_ids_.push_back(event.tokens(i));
    said_bytes_ += options_.keep_token_ids ? sizeof(TokenId) : 0;
    if (detokenizer_ && !Hidden(event.tokens(i)))
      stopped = AddText(detokenizer_->Push(event.tokens(i)));
    if (!logprobs_.empty() && !stopped) Parse(/*ended=*/false);
  }
  if (stopped) finish_reason_ = "stop";
  Parse(stopped);
  if (stopped) {
    listener_->OnChoiceStopped(*this);
  }
  listener_->OnChoiceAdvanced(*this);
}

void ChoiceStream::OnPromptLogprobs(const v1::PromptLogprobs& logprobs) {
  if (ended() || options_.prompt_logprobs < 0) return;
  for (const v1::TokenLogprobs& values : logprobs.logprobs()) {
    if (prompt_told_ >= options_.prompt.size()) break;
    AddPromptToken(
        MakeLogprob(options_.prompt.get()[prompt_told_], values, options_.prompt_logprobs));
  }
  listener_->OnChoiceAdvanced(*this);
}

void ChoiceStream::AddPromptToken(ChoiceLogprob logprob) {
  logprob.text_offset = prompt_code_points_;
  if (prompt_text_) {
    prompt_code_points_ += CodePoints(prompt_text_->Push(logprob.token));
    if (prompt_told_ + 1 == options_.prompt.size())
      prompt_code_points_ += CodePoints(prompt_text_->Flush());
  }
  const size_t bytes = sizeof(logprob) + logprob.top.size() * sizeof(TopLogprob);
  said_bytes_ += bytes;
  prompt_bytes_ += bytes;
  ++prompt_told_;
  prompt_logprobs_.push_back(std::move(logprob));
}

void ChoiceStream::OnEmbedding(const v1::TokenEvent& event) {
  if (ended()) return;
  // Approximate size of one list element as text.
  constexpr size_t kBytes = 12;
  if (event.has_timing()) timing_ = event.timing();
  preemptions_ = std::max(preemptions_, event.preemptions());
  embedding_.assign(event.embedding().begin(), event.embedding().end());
  said_bytes_ += embedding_.size() * kBytes;
}

void ChoiceStream::OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) {
  if (ended()) return;
  const bool whole = reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH;
  if (whole && options_.pooled && embedding_.empty()) {
    error_ = ApiError(Code::kInternal, "the worker ended the request without an embedding");
  } else if (whole) {
    // Text held back for an incomplete character or a possible stop string is now final.
    const bool stopped = detokenizer_ && AddText(detokenizer_->Flush());
    if (!stopped) {
      std::string rest = stops_.Flush();
      text_code_points_ += CodePoints(rest);
      text_ += rest;
    }
    finish_reason_ = stopped || reason == v1::FINISH_STOP ? "stop" : "length";
    Parse(/*ended=*/true);
  } else if (reason == v1::FINISH_CANCELLED) {
    error_ = ApiError(Code::kCancelled,
                      error.message.empty() ? "the request was cancelled" : error.message);
  } else {
    error_ = ApiError(error);
    retry_after_ = retry_after;
  }
  listener_->OnChoiceAdvanced(*this);
}

// Without a tokenizer, or on request, a token is shown by its id, as in vLLM.
std::string ChoiceStream::PieceOf(TokenId token) const {
  if (tokenizer_ == nullptr || options_.tokens_as_ids) return "token_id:" + std::to_string(token);
  return std::string(tokenizer_->IdToPiece(token));
}

ChoiceLogprob ChoiceStream::MakeLogprob(TokenId token, const v1::TokenLogprobs& values,
                                        int32_t most) const {
  ChoiceLogprob out;
  out.token = token;
  out.bytes = PieceOf(token);
  out.logprob = values.logprob();
  out.rank = values.rank();
  const int count = std::min({values.top_ids_size(), values.top_logprobs_size(), most});
  for (int i = 0; i < count; ++i)
    out.top.push_back({PieceOf(values.top_ids(i)), values.top_logprobs(i), values.top_ids(i)});
  return out;
}

void ChoiceStream::AddLogprob(TokenId token, const v1::TokenLogprobs& values) {
  if (options_.num_logprobs < 0) return;
  ChoiceLogprob out = MakeLogprob(token, values, options_.num_logprobs);
  out.text_offset = text_code_points_;
  said_bytes_ += sizeof(out) + out.top.size() * sizeof(out.top[0]);
  logprobs_.push_back(std::move(out));
  if (!parses()) placed_ = logprobs_.size();
}

bool ChoiceStream::AddText(std::string_view text) {
  said_bytes_ += text.size();
  // As in vLLM, text before min_tokens is not searched for stop strings.
  if (completion_tokens_ < options_.min_tokens) {
    text_code_points_ += CodePoints(text);
    text_ += text;
    return false;
  }
  StopMatcher::Output safe = stops_.Push(text);
  text_code_points_ += CodePoints(safe.text);
  text_ += safe.text;
  if (safe.stopped) stop_ = std::move(safe.stop);
  return safe.stopped;
}

}  // namespace aisp
