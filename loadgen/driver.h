// The run: sends requests when they are due, limits concurrency, abandons a configured share,
// retries what may be retried, and records the outcome of each. Every request ends in exactly one
// terminal status.
//
// Loop thread only, except that everything may be created before and read after the loop runs. The
// driver owns the calls; items, records and backend must outlive it.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "common/random.h"
#include "loadgen/backend.h"
#include "loadgen/options.h"
#include "loadgen/record.h"
#include "net/io_loop.h"

namespace aisp::loadgen {

struct DriverOptions {
  int64_t max_concurrency = 0;
  bool closed_loop = false;  // no arrival times: a request is due when a slot is free
  double cancel_rate = 0;
  std::optional<double> cancel_delay_s = {};
  double request_timeout_s = 600;
  int64_t retries = 0;
  bool keep_texts = false;
  double turn_delay_s = 0;  // delay between an answer and the conversation's next turn
  bool needs_ids = false;   // next turns are made of token ids, so answers must contain them
  uint64_t seed = 0;
};

class Driver {
 public:
  // `at_s`: when each item is due, ascending seconds from the start. A later turn is due when the
  // one before was answered. A conversation holds its slot of max_concurrency from first to last
  // turn.
  Driver(IoLoop* loop, Backend* backend, const DriverOptions& options,
         const std::vector<WorkItem>* items, std::vector<double> at_s,
         std::vector<RequestRecord>* records);
  ~Driver();

  // `done` is called once from the loop, when every request has ended.
  void Start(std::function<void()> done);
  // Cancels running requests with this reason and sends no more; then `done` is called.
  void Abort(const std::string& reason);

  // Seconds since Start; after the end, the duration of the run.
  double elapsed_s() const;
  size_t in_flight() const { return in_flight_; }
  size_t ended() const { return ended_; }
  size_t failed() const { return failed_; }
  // Chunks with output so far.
  int64_t chunks() const { return chunks_; }

 private:
  class Request;
  friend class Request;

  void Pump();
  // `intended_s`: when it should have been sent.
  void Launch(size_t index, double intended_s);
  bool HasNext(size_t index) const;
  // After a turn: starts the next one, or ends the conversation.
  void GoOn(size_t index);
  // Marks the rest of the conversation as not sent.
  void GiveUpAfter(size_t index, const std::string& reason);
  void SetNotSent(size_t index, const std::string& reason);
  void PumpSoon();
  // The request has ended; its call is destroyed outside of its callbacks.
  void Ended(size_t index);
  void FinishIfAllEnded();
  double Now() const { return ToSeconds(clock_.Now() - start_); }

  IoLoop* loop_;
  Backend* backend_;
  const DriverOptions options_;
  const std::vector<WorkItem>* items_;
  const std::vector<double> at_s_;
  std::vector<RequestRecord>* records_;
  std::function<void()> done_;
  SteadyClock clock_;
  Instant start_{};
  double end_s_ = -1;

  std::vector<std::unique_ptr<Request>> live_;  // by index
  std::shared_ptr<IoLoop::Timer> next_timer_;
  const std::vector<size_t> first_turns_;
  std::map<size_t, std::shared_ptr<IoLoop::Timer>> pauses_;  // by index of the next turn
  std::map<int64_t, std::vector<SpokenTurn>> histories_;     // of running conversations
  // Lets posted functions see whether the driver still exists.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool pump_posted_ = false;
  size_t next_ = 0;   // into first_turns_
  size_t slots_ = 0;  // in use by requests and conversations
  size_t in_flight_ = 0;
  size_t ended_ = 0;
  size_t failed_ = 0;
  int64_t chunks_ = 0;
};

}  // namespace aisp::loadgen
