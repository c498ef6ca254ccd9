// ChoiceNews: what a choice of a streamed answer said since the last look, taken from it, and its
// events. What it says of a whole prompt takes tens of milliseconds to write, so that is for the
// pool (frontend/event_stream.h). Made on the I/O thread; Write on any.
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
  // `opens`: it is the first of the choice.
  ChoiceNews(const PreparedRequest& prepared, ChoiceStream& choice, bool opens,
             const NameCall& name_call);

  // Of what it writes, about, where that is much.
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
  std::optional<Usage> running_;  // that the events are to tell
  std::optional<Usage> opening_;  // of the first event
  std::string echo_;
  std::vector<ChoiceLogprob> echo_logprobs_;
  bool news_ = false;
  bool parses_;
  std::string text_;
  std::vector<Part> parts_;
  std::vector<ChoiceLogprob> logprobs_;
  std::vector<TokenId> token_ids_;
  std::string_view finish_reason_;  // a literal; "": it goes on
  std::string stop_;
};

}  // namespace aisp
