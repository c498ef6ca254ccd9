#include "commands/bench_kv.h"

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "bench/kv.h"
#include "common/strings.h"
#include "common/version.h"
#include "server/process.h"

namespace aisp {

Status RunKvBench(const CommandLine& line, std::vector<std::string> library_folders) {
  KvBenchOptions options;
  options.library_folders = std::move(library_folders);
  options.owner = {ExecutableFolder() + "/aisp", "bench", "kv-owner"};
  if (line.HasExtra("gpus")) {
    const std::string gpus = line.Extra("gpus");
    for (const std::string_view gpu : Split(gpus, ',')) {
      AISP_ASSIGN_OR_RETURN(const int64_t index, ParseIntInRange(gpu, 0, 63));
      options.gpus.push_back(static_cast<int32_t>(index));
    }
    if (options.gpus.size() != 2)
      return InvalidArgument("--gpus wants the writer's and the owner's, as 0,1");
    options.lanes = {"cuda_ipc"};
  }
  if (line.HasExtra("lanes")) {
    options.lanes.clear();
    const std::string lanes = line.Extra("lanes");
    for (const std::string_view lane : Split(lanes, ',')) options.lanes.emplace_back(lane);
  }
  if (line.HasExtra("shapes")) {
    AISP_ASSIGN_OR_RETURN(options.shapes, ParseKvShapes(line.Extra("shapes")));
  }
  AISP_ASSIGN_OR_RETURN(const KvBench bench, BenchKv(options));
  if (!line.HasExtra("json")) {
    fmt::print("{}", ToTable(bench));
    return {};
  }
  fmt::print("{{\"bench\": \"kv\", \"version\": \"{}\", {}}}\n", Version(), ToJson(bench));
  return {};
}

Status RunKvOwner(const CommandLine& line, std::span<const std::string> library_folders) {
  AISP_ASSIGN_OR_RETURN(const int64_t bytes,
                        ParseIntInRange(line.positional[2], 1, int64_t{1} << 40));
  int64_t gpu = -1;
  if (line.positional[3] != "host") {
    AISP_ASSIGN_OR_RETURN(gpu, ParseIntInRange(line.positional[3], 0, 63));
  }
  return ServeKvBench(line.positional[1], static_cast<uint64_t>(bytes), static_cast<int32_t>(gpu),
                      library_folders);
}

}  // namespace aisp
