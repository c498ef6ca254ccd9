// Metrics for Prometheus: counters, gauges and histograms behind cheap handles.
//
// A Metrics object owns all values; each part of a process that serves /metrics has one. A handle
// is a pointer into it: fetch it once (this takes a lock), keep it, and update it per step rather
// than per token (one atomic add; a histogram takes a short lock). A default-constructed handle
// ignores updates. Thread-safe. A handle must not be used after its Metrics is destroyed or after
// Remove.
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

// Label names and values. Names are constants; values must have a bounded number of variants.
using MetricLabels = std::vector<std::pair<std::string, std::string>>;

// A value that only grows.
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

// `count` upper bounds: first, first*factor, first*factor^2, ...
std::vector<double> ExponentialBuckets(double first, double factor, int count);
// Bounds in seconds. They are round numbers, so that a service level such as 500 ms is itself a
// bound and its share of the requests is exact.
std::vector<double> LatencyBuckets();  // 1 ms to 60 s: TTFT and its parts
std::vector<double> RequestBuckets();  // 10 ms to 10 min: whole requests
std::vector<double> StepBuckets();     // 0.1 ms to 2 s: ITL, TPOT, steps, writes

class Metrics {
 public:
  Metrics();
  Metrics(const Metrics&) = delete;
  Metrics& operator=(const Metrics&) = delete;
  ~Metrics();

  // The same name and labels return the same value. A name has one kind, one help text and one set
  // of buckets. Names are Prometheus names with the unit last (aisp_step_seconds; ..._total for
  // counters); a malformed name fails a check.
  Counter AddCounter(const std::string& name, const std::string& help,
                     const MetricLabels& labels = {});
  Gauge AddGauge(const std::string& name, const std::string& help, const MetricLabels& labels = {});
  Histogram AddHistogram(const std::string& name, const std::string& help,
                         const std::vector<double>& buckets, const MetricLabels& labels = {});

  // `refresh` runs at the start of every Render, on its thread, for values that are sampled.
  void OnRender(std::function<void()> refresh);

  // Removes all values of this name whose labels include `labels`, e.g. when a worker leaves.
  void Remove(const std::string& name, const MetricLabels& labels);

  // All values in Prometheus text format 0.0.4.
  std::string Render() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace aisp
