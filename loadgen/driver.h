// The run: sends requests when they are due, holds at most so many at a time, abandons those that
// shall be abandoned, tries again what may be tried again, and writes down what happened to each.
// Every request ends in exactly one terminal status.
//
// Loop thread only, except that everything may be made and read before and after the loop runs. The
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
  double turn_delay_s = 0;  // from an answer to the next turn of its conversation
  bool needs_ids = false;   // a next turn is made of token ids, so the answer must have them
  uint64_t seed = 0;
};

class Driver {
 public:
  // `at_s`: when each item is due, seconds from the start, ascending; a later turn is due when the
  // one before was answered, and a slot of max_concurrency belongs to a conversation from its first
  // turn to its last.
  Driver(IoLoop* loop, Backend* backend, const DriverOptions& options,
         const std::vector<WorkItem>* items, std::vector<double> at_s,
         std::vector<RequestRecord>* records);
  ~Driver();

  // `done` is called once from the loop, when every request has ended.
  void Start(std::function<void()> done);
  // What is under way is cancelled, with this reason, and the rest is not sent; then `done`.
  void Abort(const std::string& reason);

  // Since Start; after the end the duration of the run.
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
  // After the end of a turn: the next one, or the end of the conversation.
  void GoOn(size_t index);
  // What of its conversation was not sent will not be.
  void GiveUpAfter(size_t index, const std::string& reason);
  void SetNotSent(size_t index, const std::string& reason);
  void PumpSoon();
  // The request is at its end; its call is dropped when no callback of it is running.
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
  std::map<size_t, std::shared_ptr<IoLoop::Timer>> pauses_;  // by the index of the next turn
  std::map<int64_t, std::vector<SpokenTurn>> histories_;     // of conversations under way
  // Posted functions look whether the driver is still there.
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
  bool pump_posted_ = false;
  size_t next_ = 0;   // of first_turns_
  size_t slots_ = 0;  // taken by requests and conversations
  size_t in_flight_ = 0;
  size_t ended_ = 0;
  size_t failed_ = 0;
  int64_t chunks_ = 0;
};

}  // namespace aisp::loadgen
