#include "server/choice_stream.h"

#include <algorithm>
#include <utility>

namespace aisp {
namespace {

// UTF-8 continuation bytes do not start a code point.
size_t CodePoints(std::string_view text) {
  return static_cast<size_t>(
      std::count_if(text.begin(), text.end(), [](char c) { return (c & 0xC0) != 0x80; }));
}

}  // namespace

ChoiceStream::ChoiceStream(const Tokenizer* tokenizer, const Options& options, Listener* listener)
    : tokenizer_(tokenizer),
      options_(options),
      listener_(listener),
      stops_(options.stop, options.include_stop) {
  if (tokenizer_ != nullptr) detokenizer_.emplace(*tokenizer_, options.skip_special_tokens);
}

void ChoiceStream::OnRouted(const RouteDecision& route) { listener_->OnChoiceRouted(*this, route); }

void ChoiceStream::OnTokens(const v1::TokenEvent& event) {
  if (ended()) return;
  if (event.has_timing() && !timing_) timing_ = event.timing();
  bool stopped = false;
  for (int i = 0; i < event.tokens_size() && !stopped; ++i) {
    ++completion_tokens_;
    if (i < event.logprobs_size()) AddLogprob(event.tokens(i), event.logprobs(i));
    if (options_.keep_token_ids) token_ids_.push_back(event.tokens(i));
    if (detokenizer_) stopped = AddText(detokenizer_->Push(event.tokens(i)));
  }
  if (stopped) {
    finish_reason_ = "stop";
    listener_->OnChoiceStopped(*this);
  }
  listener_->OnChoiceAdvanced(*this);
}

void ChoiceStream::OnFinish(v1::FinishReason reason, const Error& error, Duration retry_after) {
  if (ended()) return;
  if (reason == v1::FINISH_STOP || reason == v1::FINISH_LENGTH) {
    // What was held back for an unfinished character or a possible stop string is text after all.
    const bool stopped = detokenizer_ && AddText(detokenizer_->Flush());
    if (!stopped) {
      std::string rest = stops_.Flush();
      text_code_points_ += CodePoints(rest);
      text_ += rest;
    }
    finish_reason_ = stopped || reason == v1::FINISH_STOP ? "stop" : "length";
  } else if (reason == v1::FINISH_CANCELLED) {
    error_ = ApiError(Code::kCancelled,
                      error.message.empty() ? "the request was cancelled" : error.message);
  } else {
    error_ = ApiError(error);
    retry_after_ = retry_after;
  }
  listener_->OnChoiceAdvanced(*this);
}

// Without a tokenizer a token is shown by its number, as vLLM writes it.
std::string ChoiceStream::PieceOf(TokenId token) const {
  if (tokenizer_ == nullptr) return "token_id:" + std::to_string(token);
  return std::string(tokenizer_->IdToPiece(token));
}

void ChoiceStream::AddLogprob(TokenId token, const v1::TokenLogprobs& values) {
  if (options_.num_logprobs < 0) return;
  ChoiceLogprob out;
  out.token = token;
  out.bytes = PieceOf(token);
  out.logprob = values.logprob();
  out.text_offset = text_code_points_;
  const int count = std::min(values.top_ids_size(), values.top_logprobs_size());
  for (int i = 0; i < std::min(count, options_.num_logprobs); ++i) {
    out.top.push_back({PieceOf(values.top_ids(i)), values.top_logprobs(i), values.top_ids(i)});
  }
  logprobs_.push_back(std::move(out));
}

bool ChoiceStream::AddText(std::string_view text) {
  // As vLLM: what was said before min_tokens is not looked at.
  if (completion_tokens_ < options_.min_tokens) {
    text_code_points_ += CodePoints(text);
    text_ += text;
    return false;
  }
  const StopMatcher::Output safe = stops_.Push(text);
  text_code_points_ += CodePoints(safe.text);
  text_ += safe.text;
  return safe.stopped;
}

}  // namespace aisp
