// TemplateTraits: what a chat template can make of a conversation with tool calls, found out once
// by rendering small ones; and conversations put into the form that it can render. Templates differ
// in what they take without a word of it: some add a call's arguments to text and fail on an
// object, some drop calls beside content, some drop messages of roles that they do not know.
//
// Pure functions: any thread.
#pragma once

#include "text/chat_template.h"
#include "text/value.h"

namespace aisp {

struct TemplateTraits {
  bool arguments_as_text = false;    // a call's arguments as JSON text, not as an object
  bool content_as_text = false;      // "" where a message with calls has no content, not none
  bool calls_beside_content = true;  // false: calls are dropped where there is content
  bool several_calls = true;         // false: one call in a message at most
  bool developer_as_system = false;  // role system for what says developer

  bool operator==(const TemplateTraits&) const = default;
};

TemplateTraits ProbeTemplate(const ChatTemplate& chat_template);

// `messages`: a list of maps {role, content, tool_calls, tool_call_id, ...}. Where a template takes
// one call at a time, each call stands in a message of its own, with its result behind it.
Value ShapeMessages(const Value& messages, const TemplateTraits& traits);

// Tools as a client sent them, with empty descriptions where they and their parameters have none:
// for templates that add these to text without asking, and fail.
Value WithDescriptions(const Value& tools);

}  // namespace aisp
