// TemplateTraits: how a chat template handles conversations with tool calls, found by rendering
// small examples once; and the conversion of conversations to the form that it can render.
// Templates differ silently: some concatenate a call's arguments with text and fail on an object,
// some drop calls when there is content, some drop messages with roles that they do not know.
//
// Pure functions: any thread.
#pragma once

#include "text/chat_template.h"
#include "text/value.h"

namespace aisp {

struct TemplateTraits {
  bool arguments_as_text = false;    // arguments as JSON text instead of an object
  bool content_as_text = false;      // missing content is "" instead of none
  bool calls_beside_content = true;  // false: calls are dropped if there is content
  bool several_calls = true;         // false: at most one call per message
  bool developer_as_system = false;  // role developer must be renamed to system

  bool operator==(const TemplateTraits&) const = default;
};

TemplateTraits ProbeTemplate(const ChatTemplate& chat_template);

// `messages`: a list of maps {role, content, tool_calls, tool_call_id, ...}. If the template allows
// one call per message, each call becomes a message followed by its result.
Value ShapeMessages(const Value& messages, const TemplateTraits& traits);

// Adds empty descriptions to tools and parameters without one, for templates that fail without
// them.
Value WithDescriptions(const Value& tools);

}  // namespace aisp
