#include "loadgen/flag_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>

#include "common/edit_distance.h"
#include "loadgen/flag_values.h"

namespace aisp::loadgen {

const std::vector<std::string>& DatasetNames() {
  static const std::vector<std::string> names = {
      "random",  "prefix_repetition", "copy",  "code-edit", "chat",           "sharegpt",
      "custom",  "spec_bench",        "trace", "mooncake",  "mooncake_trace", "azure",
      "burstgpt"};
  return names;
}

std::vector<FlagGroup> FlagTable(Options* options) {
  std::vector<FlagGroup> out;
  for (auto* part : {WhatFlags, WhenFlags, RunFlags, ToldFlags}) {
    for (FlagGroup& group : part(options)) out.push_back(std::move(group));
  }
  return out;
}

std::string NearestFlag(std::string_view name, const std::vector<FlagGroup>& groups) {
  std::string_view best;
  size_t best_distance = 5;
  const auto consider = [&](std::string_view candidate) {
    const size_t distance = EditDistance(name, candidate);
    if (distance < best_distance) {
      best_distance = distance;
      best = candidate;
    }
  };
  for (const FlagGroup& group : groups) {
    for (const Flag& flag : group.flags) {
      consider(flag.name);
      for (const auto alias : flag.aliases) consider(alias);
    }
  }
  return best.empty() ? "; see --help" : fmt::format("; did you mean {}?", best);
}

const Flag* FindFlag(const std::vector<FlagGroup>& groups, std::string_view name) {
  for (const FlagGroup& group : groups) {
    for (const Flag& flag : group.flags) {
      if (flag.name == name ||
          std::find(flag.aliases.begin(), flag.aliases.end(), name) != flag.aliases.end()) {
        return &flag;
      }
    }
  }
  return nullptr;
}

}  // namespace aisp::loadgen
