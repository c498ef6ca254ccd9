// Pulse: what a worker says while its engine thread is inside a long step and can say nothing
// itself.
//
// The engine thread notes when a step begins and ends and what it computes; another thread asks Due
// and sends what it gets. A heartbeat is a promise that the step moves: it is given only while the
// step's age is within what the worker's own steps make plausible. A step beyond that gets none, so
// the router forgets the worker as it forgets any silent one.
//
// Thread-safe: one lock, held for a moment.
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
    // A step may always take so long, and never longer than the second, whatever was seen before.
    Duration least_limit = std::chrono::seconds(10);
    Duration most_limit = std::chrono::minutes(10);
  };
  explicit Pulse(const Options& options) : options_(options) {}

  // --- the engine thread ---
  // To whom heartbeats go, and how often: the links on which a router accepted this worker.
  void SetLinks(std::vector<LinkId> links, Duration interval);
  // A step with so many rows is handed to the device.
  void StepBegins(int64_t rows, Instant now);
  // The step that began last could not be started after all.
  void StepFailed();
  // The oldest step in flight ended.
  void StepEnds(Instant now);

  // --- any thread ---
  struct Beat {
    std::vector<LinkId> links;
    v1::WorkerMessage message;
  };
  // What to send now; nothing while no step is old enough for the routers to wonder.
  std::optional<Beat> Due(Instant now);
  // When to ask again.
  Instant Next(Instant now) const;
  // OK, or that the step in progress has taken longer than is plausible.
  Status Moves(Instant now) const;
  bool InStep() const;
  uint64_t incarnation() const { return options_.incarnation; }

 private:
  struct Step {
    int64_t rows = 0;
    Instant begin;
  };
  // Expected time of the oldest step; zero: nothing is known yet.
  Duration Expected() const;
  Duration Limit() const;
  Instant Oldest() const { return steps_.empty() ? kNever : steps_.front().begin; }

  const Options options_;
  mutable std::mutex mutex_;
  std::vector<LinkId> links_;
  Duration interval_ = std::chrono::milliseconds(200);  // between two heartbeats
  std::vector<Step> steps_;  // in flight, oldest first: as many as an executor is deep
  uint64_t ended_ = 0;
  Instant last_beat_;
  double slowest_row_ns_ = 0;  // of recent steps
};

}  // namespace aisp
