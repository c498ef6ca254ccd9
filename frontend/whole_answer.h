// WholeAnswer: the output of all choices of an answer that is not streamed, and its JSON. A
// megabyte takes ten milliseconds to write, so large answers are written on the pool. Created on
// the I/O thread; Write runs on any.
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

  // Approximate size of the JSON.
  size_t bytes() const { return bytes_; }
  // Call once.
  std::string Write(AnswerEncoder* encoder);

 private:
  Usage usage_;
  std::vector<std::string> stops_;  // stop strings that choices_ refer to
  std::vector<Choice> choices_;
  // Logprobs of each prompt, shared by its choices; empty: not requested.
  std::vector<std::vector<ChoiceLogprob>> prompts_;
  size_t choices_of_prompt_ = 1;
  // Per prompt with echoed logprobs: its length in code points.
  std::vector<size_t> echoed_;
  size_t bytes_ = 0;
};

}  // namespace aisp
