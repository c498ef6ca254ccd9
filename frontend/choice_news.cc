#include "frontend/choice_news.h"

#include <algorithm>
#include <span>
#include <utility>

namespace aisp {
namespace {

Usage UsageSoFar(const PreparedRequest& prepared, const ChoiceStream& choice) {
  return {static_cast<uint32_t>(prepared.PromptOf(choice.index()).size()),
          choice.completion_tokens(), choice.timing() ? choice.timing()->cached_tokens() : 0};
}

// The number of logprobs that precede those of the next text part.
size_t OfNextText(std::span<const ChoiceLogprob> logprobs) {
  uint32_t part = 0;
  for (size_t i = 0; i < logprobs.size(); ++i) {
    if (part != 0 && logprobs[i].text_part > part) return i;
    part = std::max(part, logprobs[i].text_part);
  }
  return logprobs.size();
}

}  // namespace

ChoiceNews::ChoiceNews(const PreparedRequest& prepared, ChoiceStream& choice, bool opens,
                       const NameCall& name_call)
    : index_(choice.index()), position_(choice.completion_tokens()), parses_(choice.parses()) {
  if (prepared.options.continuous_usage) running_ = UsageSoFar(prepared, choice);
  if (opens) {
    opening_ = UsageSoFar(prepared, choice);
    if (!prepared.echoes.empty()) echo_ = prepared.echoes[index_ / prepared.options.n];
    if (prepared.EchoesLogprobs()) {
      bytes_ += choice.prompt_bytes();
      echo_logprobs_ = choice.TakePromptLogprobs();
    }
  }
  news_ = choice.HasNews();
  if (news_) TakeText(prepared, choice, name_call);
  if (!choice.ended()) return;
  finish_reason_ = choice.finish_reason();
  stop_ = choice.stop();
  // The last events repeat everything that the choice said.
  if (prepared.gathers_answer) bytes_ += choice.said_bytes();
}

void ChoiceNews::TakeText(const PreparedRequest& prepared, ChoiceStream& choice,
                          const NameCall& name_call) {
  logprobs_ = choice.TakeLogprobs();
  token_ids_ = choice.TakeTokenIds();
  if (!parses_) {
    // In a stream every choice includes the logprobs of its own prompt.
    const size_t before = prepared.EchoesLogprobs() ? choice.prompt_code_points() : 0;
    for (ChoiceLogprob& each : logprobs_) each.text_offset += before;
    text_ = choice.TakeText();
    return;
  }
  for (AnswerPart& part : choice.TakeParts()) {
    if (part.kind == AnswerPart::Kind::kReasoning && !prepared.include_reasoning) continue;
    const bool call = part.kind == AnswerPart::Kind::kCall;
    std::string id = call ? name_call(index_, part.call) : "";
    parts_.push_back({std::move(part), std::move(id)});
  }
}

void ChoiceNews::Write(AnswerEncoder* encoder, std::string* out) const {
  if (running_) encoder->SetRunningUsage(*running_);
  if (opening_) {
    encoder->Open(index_, *opening_, out);
    if (!echo_.empty()) encoder->Text(index_, 0, echo_, echo_logprobs_, {}, out);
  }
  if (news_ && parses_) {
    WriteParts(encoder, out);
  } else if (news_) {
    encoder->Text(index_, position_, text_, logprobs_, token_ids_, out);
  }
  if (!finish_reason_.empty()) encoder->Finish(index_, position_, {finish_reason_, stop_}, out);
}

void ChoiceNews::WriteParts(AnswerEncoder* encoder, std::string* out) const {
  std::span<const ChoiceLogprob> logprobs = logprobs_;
  std::span<const TokenId> token_ids = token_ids_;
  for (const auto& [part, call_id] : parts_) {
    switch (part.kind) {
      case AnswerPart::Kind::kContent: {
        const size_t count = OfNextText(logprobs);
        encoder->Text(index_, position_, part.text, logprobs.first(count), token_ids, out);
        logprobs = logprobs.subspan(count);
        token_ids = {};
        break;
      }
      case AnswerPart::Kind::kReasoning:
        encoder->Reasoning(index_, position_, part.text, out);
        break;
      case AnswerPart::Kind::kCall:
        encoder->Call(index_, position_, part.call, call_id, part.text, out);
        break;
      case AnswerPart::Kind::kArguments:
        encoder->CallArguments(index_, position_, part.call, part.text, out);
        break;
    }
  }
  // Logprobs and ids cover all tokens, including those whose text was not returned.
  if (!logprobs.empty() || !token_ids.empty())
    encoder->Text(index_, position_, "", logprobs, token_ids, out);
}

}  // namespace aisp
