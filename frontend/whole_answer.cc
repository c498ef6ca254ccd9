#include "frontend/whole_answer.h"

#include <utility>

namespace aisp {
namespace {

void AddPiece(Choice::Piece::Kind kind, size_t bytes, uint32_t text_part,
              std::vector<Choice::Piece>* order) {
  if (order->empty() || order->back().kind != kind) order->push_back({kind});
  order->back().bytes += bytes;
  order->back().text_part = text_part;
}

void AddParts(std::vector<AnswerPart> parts, bool include_reasoning,
              const WholeAnswer::NameCall& name_call, Choice* out) {
  uint32_t texts = 0;
  for (AnswerPart& part : parts) {
    switch (part.kind) {
      case AnswerPart::Kind::kContent:
        out->text += part.text;
        AddPiece(Choice::Piece::Kind::kText, part.text.size(), ++texts, &out->order);
        break;
      case AnswerPart::Kind::kReasoning:
        if (!include_reasoning) break;
        out->reasoning += part.text;
        AddPiece(Choice::Piece::Kind::kReasoning, part.text.size(), texts, &out->order);
        break;
      case AnswerPart::Kind::kCall:
        out->order.push_back({Choice::Piece::Kind::kCall});
        out->calls.push_back({name_call(out->index, part.call), std::move(part.text), ""});
        break;
      case AnswerPart::Kind::kArguments:
        out->calls.back().arguments += part.text;
        break;
    }
  }
}

}  // namespace

WholeAnswer::WholeAnswer(const PreparedRequest& prepared,
                         std::span<const std::unique_ptr<ChoiceStream>> choices,
                         const NameCall& name_call, Usage usage)
    : usage_(std::move(usage)), choices_of_prompt_(prepared.options.n) {
  stops_.reserve(choices.size());
  for (const auto& choice : choices) {
    bytes_ += choice->said_bytes() + choice->prompt_bytes() * (prepared.PromptCopies() - 1);
    const size_t prompt = choice->index() / choices_of_prompt_;
    if (prepared.ScoresPrompt(choice->index())) {
      prompts_.push_back(choice->TakePromptLogprobs());
      if (prepared.EchoesLogprobs()) echoed_.push_back(choice->prompt_code_points());
    }
    Choice c;
    c.index = choice->index();
    if (!prepared.echoes.empty()) c.text = prepared.echoes[prompt];
    c.text += choice->TakeText();
    c.finish_reason = choice->finish_reason();
    c.stop = stops_.emplace_back(choice->stop());
    c.has_logprobs = prepared.options.sampling.num_logprobs() >= 0;
    c.logprobs = choice->TakeLogprobs();
    c.token_ids = choice->TakeTokenIds();
    AddParts(choice->TakeParts(), prepared.include_reasoning, name_call, &c);
    choices_.push_back(std::move(c));
  }
}

std::string WholeAnswer::Write(AnswerEncoder* encoder) {
  for (Choice& c : choices_) {
    if (prompts_.empty()) break;
    const size_t prompt = c.index / choices_of_prompt_;
    if (echoed_.empty()) {
      c.prompt_logprobs = prompts_[prompt];
      continue;
    }
    for (ChoiceLogprob& each : c.logprobs) each.text_offset += echoed_[prompt];
    c.logprobs.insert(c.logprobs.begin(), prompts_[prompt].begin(), prompts_[prompt].end());
  }
  return encoder->Whole(choices_, usage_);
}

}  // namespace aisp
