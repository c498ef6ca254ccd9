// Tools and thinking, as a chat request names them. Plain data.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "text/value.h"

namespace aisp {

struct ToolSpec {
  std::string name;
  Value parameters;     // a JSON Schema (a map), or none: it takes none
  bool strict = false;  // what cannot be enforced is refused
};

enum class ToolChoice : uint8_t { kNone, kAuto, kRequired, kNamed };

struct ToolOptions {
  std::vector<ToolSpec> tools;  // empty: there are none
  ToolChoice choice = ToolChoice::kAuto;
  std::string named;  // kNamed: which of them
  bool some = false;  // `tools` are those that may be called, and the model hears of others too
  bool parallel = true;

  bool CallsPossible() const { return !tools.empty() && choice != ToolChoice::kNone; }
};

struct ThinkingOptions {
  std::string effort;              // reasoning_effort; "": not said
  std::optional<uint32_t> budget;  // tokens of thinking
  bool include = true;             // give the thinking out
};

}  // namespace aisp
