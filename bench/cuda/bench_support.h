// Shared by the benchmarks of linear layers: error exits, arguments, device memory, timing by CUDA
// graphs. Host code; one thread.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/result.h"

namespace aisp::cuda {

// Exits on an error, after printing it: a benchmark has no caller to report to.
inline void Require(cudaError_t error, const char* what) {
  if (error == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(error));
  std::exit(1);
}
template <typename T>
T Require(Result<T> result) {
  if (!result) {
    std::fprintf(stderr, "%s\n", result.error().ToString().c_str());
    std::exit(1);
  }
  if constexpr (!std::is_void_v<T>) return std::move(*result);
}

// The value of the last argument NAME=VALUE; `fallback` without one.
inline std::string Argument(int argc, char** argv, const std::string& name,
                            const std::string& fallback) {
  std::string value = fallback;
  for (int i = 1; i < argc; ++i) {
    const std::string argument = argv[i];
    if (argument.rfind(name + "=", 0) == 0) value = argument.substr(name.size() + 1);
  }
  return value;
}

// rows=1,8,32; each from 1 to `most`.
inline std::vector<int> RowsArgument(int argc, char** argv, const std::string& fallback, int most) {
  const std::string list = Argument(argc, argv, "rows", fallback);
  std::vector<int> rows;
  for (const char* at = list.c_str(); *at != '\0';) {
    char* end = nullptr;
    rows.push_back(static_cast<int>(std::strtol(at, &end, 10)));
    if (rows.back() < 1 || rows.back() > most || (*end != '\0' && *end != ',')) {
      std::fprintf(stderr, "rows are 1 to %d, separated by commas\n", most);
      std::exit(1);
    }
    at = *end == ',' ? end + 1 : end;
  }
  return rows;
}

// Device memory for `count` elements, freed at process exit at the latest.
template <typename T>
T* Allocate(size_t count) {
  void* p = nullptr;
  Require(cudaMalloc(&p, count * sizeof(T)), "cudaMalloc");
  return static_cast<T*>(p);
}

// `count` calls in a graph, and the times of its runs.
class Captured {
 public:
  Captured(int count, cudaStream_t stream, const std::function<void(int)>& call)
      : count_(count), stream_(stream) {
    cudaGraph_t graph = nullptr;
    Require(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    for (int i = 0; i < count; ++i) call(i);
    Require(cudaStreamEndCapture(stream, &graph), "capture");
    Require(cudaGraphInstantiate(&exec_, graph, 0), "graph");
    cudaGraphDestroy(graph);
    for (auto& event : events_) Require(cudaEventCreate(&event), "event");
  }
  Captured(const Captured&) = delete;
  Captured& operator=(const Captured&) = delete;
  ~Captured() {
    for (auto& event : events_) cudaEventDestroy(event);
    cudaGraphExecDestroy(exec_);
  }
  void Run() {
    Require(cudaEventRecord(events_[0], stream_), "event");
    Require(cudaGraphLaunch(exec_, stream_), "graph");
    Require(cudaEventRecord(events_[1], stream_), "event");
    Require(cudaStreamSynchronize(stream_), "graph");
    float ms = 0.0f;
    Require(cudaEventElapsedTime(&ms, events_[0], events_[1]), "event");
    times_.push_back(ms);
  }
  // Median time of one call in microseconds, without the first run.
  double Median() {
    std::sort(times_.begin() + 1, times_.end());
    return times_[1 + (times_.size() - 1) / 2] * 1000.0 / count_;
  }

 private:
  int count_;
  cudaStream_t stream_;
  cudaGraphExec_t exec_ = nullptr;
  cudaEvent_t events_[2] = {};
  std::vector<float> times_;
};

// Time of one of `count` calls in microseconds: the median of `runs` replays of their graph, after
// a warm-up.
inline double Time(int count, cudaStream_t stream, int runs, const std::function<void(int)>& call) {
  Captured captured(count, stream, call);
  for (int i = 0; i <= runs; ++i) captured.Run();
  return captured.Median();
}

}  // namespace aisp::cuda
