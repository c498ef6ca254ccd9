// Metrics for Prometheus: counters, gauges and histograms behind cheap handles.
//
// A Metrics object owns every value; one per process part that serves /metrics, given to whoever
// measures. A handle is a pointer into it: fetch it once (it takes a lock), keep it, update it per
// step rather than per token (one atomic add; a histogram takes a short lock). A default-made
// handle ignores updates. Any thread may call anything. Handles must not be used after their
// Metrics is gone, nor after Remove.
#pragma once

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp {

// Label name and value; names are constants of the program, and values have a bounded number of
// variants.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// Only grows.
class Counter {
 public:
  Counter() = default;
  void Add(double amount = 1) const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Counter(void* impl) : impl_(impl) {}
  void* impl_ = nullptr;
};

class Gauge {
 public:
  Gauge() = default;
  void Set(double value) const;
  void Add(double amount) const;
  double Value() const;

 private:
  friend class Metrics;
  explicit Gauge(void* impl) : impl_(impl) {}
  void* impl_ = nullptr;
};

// Counts observations by upper bound, with their sum.
class Histogram {
 public:
  Histogram() = default;
  void Observe(double value) const;

 private:
  friend class Metrics;
  explicit Histogram(void* impl) : impl_(impl) {}
  void* impl_ = nullptr;
};

// Upper bounds first, first*factor, ... : `count` of them.
std::vector<double> ExponentialBuckets(double first, double factor, int count);
// Bounds in seconds. Round numbers, so that a service level such as 500 ms is a bound and its share
// of the requests exact.
std::vector<double> LatencyBuckets();  // 1 ms to 60 s: TTFT and its parts
std::vector<double> RequestBuckets();  // 10 ms to 10 min: whole requests
std::vector<double> StepBuckets();     // 0.1 ms to 2 s: ITL, TPOT, steps, writes

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  // The same name and labels give the same value. One name has one kind, one help text and one set
  // of buckets. Names are Prometheus names with the unit last (aisp_step_seconds, ..._total for
  // counters); a wrong one is a failed check.
  Counter AddCounter(const std::string& name, const std::string& help,
                     const MetricLabels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets, const MetricLabels& labels = {});

  // `refresh` runs at the beginning of every Render, on its thread: for values that are read
  // somewhere rather than counted.
  void OnRender(std::function<void()> refresh);

  // Forgets the values of this name whose labels include all of `labels` (a worker that left).
  void Remove(const std::string& name, const MetricLabels& labels);

  // Everything in Prometheus's text format, version 0.0.4.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
