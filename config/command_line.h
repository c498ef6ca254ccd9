// The command line: flags applied to a Config, with help from the table of settings. Pure; prints
// nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace aisp {

// A parsed command line.
struct CommandLine {
  Config config;
  std::vector<std::string> positional;
  bool help = false;
  bool version = false;
  bool print_config = false;
  // Flags of one command that are not settings: name without dashes and value ("" for a switch).
  std::vector<std::pair<std::string, std::string>> extra;
  // Value of an extra flag, or `fallback`.
  std::string Extra(std::string_view name, std::string_view fallback = "") const;
  bool HasExtra(std::string_view name) const;
  // The value as a number, `fallback` when absent. The error names the flag, the value and the
  // range.
  Result<int64_t> ExtraInt(std::string_view name, int64_t fallback, int64_t min, int64_t max) const;
  Result<double> ExtraNumber(std::string_view name, double fallback, double min, double max) const;
};

struct ExtraFlag {
  std::string_view name;   // "--max-tokens"
  std::string_view value;  // "N"; "" for a switch
  std::string_view help;
};

// Applies `--config FILE` first, then the flags: `--flag value`, `--flag=value`, `--no-x`/`--x` for
// booleans. A flag is a setting's key (`--engine.block_tokens 32`) or its short flag (`--block-size
// 32`). Unknown flags are INVALID_ARGUMENT with the nearest known one.
Result<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                     std::span<const ExtraFlag> extras = {});

// Help lines for the settings whose key starts with one of `prefixes`.
std::string HelpForSettings(std::span<const std::string_view> prefixes,
                            std::span<const ExtraFlag> extras = {});

}  // namespace aisp
