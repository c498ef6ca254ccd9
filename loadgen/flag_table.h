// The flags of aisp-loadgen as data: names, values, help texts, and what each sets in Options.
// Pure.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "common/result.h"
#include "loadgen/options.h"

namespace aisp::loadgen {

using FlagValues = std::vector<std::string>;

struct Flag {
  std::string_view name;
  std::vector<std::string_view> aliases;
  std::string_view value;  // "" for a switch; "A B..." takes all values up to the next flag
  std::string_view help;
  std::function<Status(const FlagValues&)> set;
  bool many() const { return value.ends_with("..."); }
};

struct FlagGroup {
  std::string_view title;
  std::vector<Flag> flags;
};

// The values of --dataset-name; the first kMadeUpDatasets need no file.
const std::vector<std::string>& DatasetNames();
inline constexpr int kMadeUpDatasets = 5;

// INVALID_ARGUMENT "'x' is not <accepted>" when it is not a number in [min, max].
Result<double> ParseNumber(const std::string& text, double min, double max,
                           std::string_view accepted);

// The groups of the table, by file.
std::vector<FlagGroup> WhatFlags(Options* options);
std::vector<FlagGroup> WhenFlags(Options* options);
std::vector<FlagGroup> RunFlags(Options* options);
std::vector<FlagGroup> ToldFlags(Options* options);

// In the order of --help. The flags write to *options, which must outlive them.
std::vector<FlagGroup> FlagTable(Options* options);

// By name or alias; null when unknown.
const Flag* FindFlag(const std::vector<FlagGroup>& groups, std::string_view name);
// "; did you mean --x?", or where to look the flag up.
std::string NearestFlag(std::string_view name, const std::vector<FlagGroup>& groups);

}  // namespace aisp::loadgen
