// ChoiceNews: the output of one choice of a streamed answer since the last look, and its events.
// Writing the logprobs of a whole prompt takes tens of milliseconds, so that runs on the pool
// (frontend/event_stream.h). Created on the I/O thread; Write runs on any.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "api/answer_encoder.h"
#include "frontend/choice_stream.h"
#include "frontend/prepared_request.h"

namespace aisp {

class ChoiceNews {
 public:
  using NameCall = std::function<std::string(uint32_t choice, uint32_t call)>;
  // `opens`: these are the first events of the choice.
  ChoiceNews(const PreparedRequest& prepared, ChoiceStream& choice, bool opens,
             const NameCall& name_call);

  // Approximate size of the output if it is large, else 0.
  size_t bytes() const { return bytes_; }
  void Write(AnswerEncoder* encoder, std::string* out) const;

 private:
  struct Part {
    AnswerPart part;
    std::string call_id;
  };
  void TakeText(const PreparedRequest& prepared, ChoiceStream& choice, const NameCall& name_call);
  void WriteParts(AnswerEncoder* encoder, std::string* out) const;

  uint32_t index_;
  uint64_t position_;
  size_t bytes_ = 0;
  std::optional<Usage> running_;  // usage to report in the events
  std::optional<Usage> opening_;  // usage to report in the first event
  std::string echo_;
  std::vector<ChoiceLogprob> echo_logprobs_;
  bool news_ = false;
  bool parses_;
  std::string text_;
  std::vector<Part> parts_;
  std::vector<ChoiceLogprob> logprobs_;
  std::vector<TokenId> token_ids_;
  std::string_view finish_reason_;  // a literal; "": not finished
  std::string stop_;
};

}  // namespace aisp
