// Pulse: heartbeats of a worker while its engine thread is inside a long step and cannot send.
//
// The engine thread records when a step begins and ends and its rows; another thread calls Due and
// sends the result. A heartbeat asserts that the step makes progress, so it is sent only while the
// step's age is plausible by the worker's earlier steps. Beyond that none is sent, and the router
// drops the worker like any silent one.
//
// Thread-safe: one lock, held briefly.
#pragma once

#include <cstdint>
#include <mutex>
#include <optional>
#include <vector>

#include "common/clock.h"
#include "proto/link.h"

namespace aisp {

class Pulse {
 public:
  struct Options {
    uint64_t incarnation = 0;
    // The limit of a step's age is always between these two, whatever was measured.
    Duration least_limit = std::chrono::seconds(10);
    Duration most_limit = std::chrono::minutes(10);
  };
  explicit Pulse(const Options& options) : options_(options) {}

  // --- the engine thread ---
  // Where heartbeats go, and how often: the links on which a router accepted this worker.
  void SetLinks(std::vector<LinkId> links, Duration interval);
  // A step with `rows` rows was given to the device.
  void StepBegins(int64_t rows, Instant now);
  // The step of the last StepBegins could not be started after all.
  void StepFailed();
  // The oldest step in flight ended.
  void StepEnds(Instant now);

  // --- any thread ---
  struct Beat {
    std::vector<LinkId> links;
    v1::WorkerMessage message;
  };
  // The heartbeat to send now; none while no step is old enough for routers to miss telemetry.
  std::optional<Beat> Due(Instant now);
  // When to call Due again.
  Instant Next(Instant now) const;
  // OK, or UNAVAILABLE: the current step has taken longer than is plausible.
  Status Moves(Instant now) const;
  bool InStep() const;
  uint64_t incarnation() const { return options_.incarnation; }

 private:
  struct Step {
    int64_t rows = 0;
    Instant begin;
  };
  // Expected duration of the oldest step; zero: unknown.
  Duration Expected() const;
  Duration Limit() const;
  Instant Oldest() const { return steps_.empty() ? kNever : steps_.front().begin; }

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<LinkId> links_;
  Duration interval_ = std::chrono::milliseconds(200);  // between two heartbeats
  std::vector<Step> steps_;  // in flight, oldest first; at most the executor's depth
  uint64_t ended_ = 0;
  Instant last_beat_;
  double slowest_row_ns_ = 0;  // of recent steps
};

}  // namespace aisp
