#include "commands/bench_route.h"

#include <fmt/format.h>

#include "bench/route.h"
#include "common/version.h"

namespace aisp {

Status RunRouteBench(const CommandLine& line) {
  constexpr int64_t kMost = 10'000'000, kMostWorkers = 4'096;
  RouteBenchOptions options;
  const auto number = [&line](std::string_view name, int32_t* value, int64_t least,
                              int64_t most) -> Status {
    AISP_ASSIGN_OR_RETURN(const int64_t n, line.ExtraInt(name, *value, least, most));
    *value = static_cast<int32_t>(n);
    return {};
  };
  auto rate = static_cast<int32_t>(options.rate);
  AISP_RETURN_IF_ERROR(number("decode", &options.decode, 1, kMostWorkers));
  AISP_RETURN_IF_ERROR(number("prefill", &options.prefill, 0, kMostWorkers));
  AISP_RETURN_IF_ERROR(number("requests", &options.requests, 1, kMost));
  AISP_RETURN_IF_ERROR(number("rate", &rate, 1, kMost));
  AISP_RETURN_IF_ERROR(number("prefixes", &options.prefixes, 1, kMost));
  AISP_RETURN_IF_ERROR(number("isl", &options.prefix_tokens, 0, 1 << 17));
  options.rate = rate;
  if (line.HasExtra("policy")) options.policy = line.Extra("policy");
  AISP_ASSIGN_OR_RETURN(const RouteBench bench, BenchRoute(options));
  if (line.HasExtra("json")) {
    fmt::print("{{\"bench\": \"route\", \"version\": \"{}\", \"rows\": [{}]}}\n", Version(),
               ToJson(options, bench));
  } else {
    fmt::print("{}", ToTable(options, bench));
  }
  return {};
}

}  // namespace aisp
