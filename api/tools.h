// Tools and thinking as requested in a chat. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/value.h"

namespace aisp {

struct ToolSpec {
  std::string name;
  Value parameters;     // a JSON Schema (a map), or none: no parameters
  bool strict = false;  // refuse schemas that cannot be enforced
};

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolOptions {
  std::vector<ToolSpec> tools;  // empty: no tools
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // kNamed: the tool's name
  bool some = false;  // `tools` are only the callable ones; the prompt shows others too
  bool parallel = true;

  bool CallsPossible() const { return !tools.empty() && choice != ToolChoice::kNone; }
};

struct ThinkingOptions {
  std::string effort;              // reasoning_effort; "": absent
  std::optional<uint32_t> budget;  // thinking tokens
  bool include = true;             // return the thinking
};

}  // namespace aisp
