// One timed run: the loop with the drivers of warm-up and run, signals, the progress line, and the
// client's own cost. Does not evaluate results.
//
// Used once, on the thread that then runs the loop. Loop, backend, options and items must outlive
// it.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "common/clock.h"
#include "loadgen/backend.h"
#include "loadgen/driver.h"
#include "loadgen/options.h"
#include "loadgen/record.h"
#include "net/io_loop.h"

namespace aisp::loadgen {

// User and system CPU time of RUSAGE_SELF or RUSAGE_THREAD.
double CpuSeconds(int who);

// Whether SIGINT or SIGTERM, which main() has blocked, is pending; the next one ends the program as
// usual.
bool TookStopSignal();

class TimedRun {
 public:
  // `needs_ids`: later turns are made of the token ids of answers.
  TimedRun(IoLoop* loop, Backend* backend, const Options& options, bool needs_ids)
      : loop_(loop), backend_(backend), options_(options), needs_ids_(needs_ids) {}

  // Runs the loop to the end of the run. Warm-ups only produce notes.
  void Run(const std::vector<WorkItem>& warmups, const std::vector<WorkItem>& items,
           std::vector<double> at_s, std::vector<RequestRecord>* records);

  bool interrupted() const { return interrupted_; }
  bool stopped() const { return stopped_; }
  double duration_s() const { return driver_->elapsed_s(); }
  double cpu_share() const { return cpu_s_ / std::max(duration_s(), 1e-9); }
  // P99 and maximum delay of the loop's timers, hence the error of its time stamps.
  double loop_lag_p99_ms() const;
  double loop_lag_max_ms() const;
  double peak_cpu_share() const { return std::max(peak_cpu_, cpu_share()); }
  const std::vector<std::string>& notes() const { return notes_; }

 private:
  DriverOptions ForDriver(bool warmup) const;
  void StartMain();
  void Tick();
  void Probe();
  void CheckSignals();
  void CheckHope();
  void SampleCpu();
  void Progress(bool last);

  IoLoop* loop_;
  Backend* backend_;
  const Options& options_;
  const bool needs_ids_;
  const std::vector<WorkItem>* items_ = nullptr;
  std::vector<double> at_s_;
  std::vector<RequestRecord>* records_ = nullptr;
  std::vector<RequestRecord> warmup_records_;
  std::unique_ptr<Driver> warmup_;
  std::unique_ptr<Driver> driver_;
  std::shared_ptr<IoLoop::Timer> ticker_, prober_;
  std::vector<double> loop_lag_ms_;
  SteadyClock clock_;
  std::vector<std::string> notes_;
  bool interrupted_ = false;
  bool stopped_ = false;
  double cpu_start_s_ = 0, cpu_s_ = 0, cpu_sampled_s_ = 0, peak_cpu_ = 0;
  Instant sampled_{}, printed_{};
  int64_t printed_chunks_ = 0;
};

}  // namespace aisp::loadgen
