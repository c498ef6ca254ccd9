// WholeAnswer: what the choices of an answer that is not streamed have said, taken from them, and
// its JSON. A megabyte of it takes ten milliseconds to write, so a large one is for the pool. Made
// on the I/O thread; Write on any.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "api/answer_encoder.h"
#include "frontend/choice_stream.h"
#include "frontend/prepared_request.h"

namespace aisp {

class WholeAnswer {
 public:
  using NameCall = std::function<std::string(uint32_t choice, uint32_t call)>;
  WholeAnswer(const PreparedRequest& prepared,
              std::span<const std::unique_ptr<ChoiceStream>> choices, const NameCall& name_call,
              Usage usage);
  WholeAnswer(const WholeAnswer&) = delete;
  WholeAnswer& operator=(const WholeAnswer&) = delete;

  // Of what it writes, about.
  size_t bytes() const { return bytes_; }
  // Once.
  std::string Write(AnswerEncoder* encoder);

 private:
  Usage usage_;
  std::vector<std::string> stops_;  // that choices_ refer to
  std::vector<Choice> choices_;
  // Of each prompt, which this many choices share; empty: not wanted.
  std::vector<std::vector<ChoiceLogprob>> prompts_;
  size_t choices_of_prompt_ = 1;
  // Of each prompt whose logprobs go before those of its choices (echo): its code points.
  std::vector<size_t> echoed_;
  size_t bytes_ = 0;
};

}  // namespace aisp
