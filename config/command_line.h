// The command line: flags over a Config, with help made from the table of settings. Pure; prints
// nothing.
#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace aisp {

// What stands on a command line beside settings.
struct CommandLine {
  Config config;
  std::vector<std::string> positional;
  bool help = false;
  bool version = false;
  bool print_config = false;
  // Flags of one command that are no settings: name without dashes -> value ("" for a switch).
  std::vector<std::pair<std::string, std::string>> extra;
  // Value of an extra flag, or `fallback`.
  std::string Extra(std::string_view name, std::string_view fallback = "") const;
  bool HasExtra(std::string_view name) const;
  // The same as a number, `fallback` when it is absent; the error names the flag, the value and
  // what is allowed.
  Result<int64_t> ExtraInt(std::string_view name, int64_t fallback, int64_t min, int64_t max) const;
  Result<double> ExtraNumber(std::string_view name, double fallback, double min, double max) const;
};

struct ExtraFlag {
  std::string_view name;   // "--max-tokens"
  std::string_view value;  // "N"; "" for a switch
  std::string_view help;
};

// Reads `--config FILE` first, then the flags over it: `--flag value`, `--flag=value`,
// `--no-x`/`--x` for booleans. A flag is a setting's key (`--engine.block_tokens 32`) or its short
// flag (`--block-size 32`). Unknown flags are INVALID_ARGUMENT with the nearest known one.
Result<CommandLine> ParseCommandLine(std::span<const std::string> args,
                                     std::span<const ExtraFlag> extras = {});

// Flags of the settings whose key starts with one of `prefixes`, as lines for --help.
std::string HelpForSettings(std::span<const std::string_view> prefixes,
                            std::span<const ExtraFlag> extras = {});

}  // namespace aisp
