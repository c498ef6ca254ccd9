#include "common/metrics.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>
#include <sstream>
#include <variant>

#include <fmt/format.h>
#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>
#include <prometheus/text_serializer.h>

#include "common/check.h"

namespace aisp {
namespace {

template <typename T>
using Family = prometheus::Family<T>;

prometheus::Labels ToLabels(const MetricLabels& labels) { return {labels.begin(), labels.end()}; }

bool Includes(const prometheus::Labels& all, const MetricLabels& some) {
  return std::ranges::all_of(some, [&](const auto& label) {
    const auto found = all.find(label.first);
    return found != all.end() && found->second == label.second;
  });
}

}  // namespace

void Counter::Add(double amount) const {
  if (impl_ != nullptr) static_cast<prometheus::Counter*>(impl_)->Increment(amount);
}
double Counter::Value() const {
  return impl_ == nullptr ? 0 : static_cast<prometheus::Counter*>(impl_)->Value();
}

void Gauge::Set(double value) const {
  if (impl_ != nullptr) static_cast<prometheus::Gauge*>(impl_)->Set(value);
}
void Gauge::Add(double amount) const {
  if (impl_ != nullptr) static_cast<prometheus::Gauge*>(impl_)->Increment(amount);
}
double Gauge::Value() const {
  return impl_ == nullptr ? 0 : static_cast<prometheus::Gauge*>(impl_)->Value();
}

void Histogram::Observe(double value) const {
  if (impl_ != nullptr) static_cast<prometheus::Histogram*>(impl_)->Observe(value);
}

std::vector<double> ExponentialBuckets(double first, double factor, int count) {
  AISP_CHECK(first > 0 && factor > 1 && count > 0);
  std::vector<double> bounds;
  for (double bound = first; count > 0; --count, bound *= factor) bounds.push_back(bound);
  return bounds;
}
std::vector<double> LatencyBuckets() {
  return {0.001, 0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4,
          0.5,   0.75,  1,     1.5,  2,    3,    5,    7.5,   10,  15,   20,  30,  60};
}
std::vector<double> RequestBuckets() {
  return {0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1,  2,   3,   5,   7.5,
          10,   15,   20,   30,  45,  60,  90, 120, 180, 300, 600};
}
std::vector<double> StepBuckets() {
  return {0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.015, 0.02, 0.025,
          0.03,   0.04,   0.05,   0.075, 0.1,   0.15,  0.2,   0.3,    0.5,  0.75,  1,    2};
}

// prometheus::Registry owns the values; the map lets Remove find them by name and labels.
struct Metrics::Impl {
  template <typename T>
  struct Series {
    Family<T>* family = nullptr;
    std::map<prometheus::Labels, T*> values;
  };
  using AnySeries = std::variant<Series<prometheus::Counter>, Series<prometheus::Gauge>,
                                 Series<prometheus::Histogram>>;

  // The value of `name` and `labels`; if new, it is made by `build` (a family builder) with `args`.
  template <typename T, typename Build, typename... Args>
  T* Get(const std::string& name, const std::string& help, const MetricLabels& labels, Build build,
         Args&&... args) {
    const std::lock_guard lock(mutex);
    auto& any = series.try_emplace(name, Series<T>()).first->second;
    auto* one = std::get_if<Series<T>>(&any);
    AISP_CHECK_MSG(one != nullptr, fmt::format("metric {} exists with another kind", name));
    try {
      if (one->family == nullptr) one->family = &build().Name(name).Help(help).Register(registry);
      const prometheus::Labels key = ToLabels(labels);
      T* value = &one->family->Add(key, std::forward<Args>(args)...);
      one->values[key] = value;
      return value;
    } catch (const std::exception& error) {
      AISP_CHECK_MSG(false, fmt::format("metric {}: {}", name, error.what()));
    }
    return nullptr;
  }

  prometheus::Registry registry;
  std::mutex mutex;
  std::map<std::string, AnySeries> series;
  std::mutex refresh_mutex;
  std::vector<std::function<void()>> refreshes;
};

Metrics::Metrics() : impl_(std::make_unique<Impl>()) {}
Metrics::~Metrics() = default;

Counter Metrics::AddCounter(const std::string& name, const std::string& help,
                            const MetricLabels& labels) {
  return Counter(impl_->Get<prometheus::Counter>(name, help, labels, prometheus::BuildCounter));
}

Gauge Metrics::AddGauge(const std::string& name, const std::string& help,
                        const MetricLabels& labels) {
  return Gauge(impl_->Get<prometheus::Gauge>(name, help, labels, prometheus::BuildGauge));
}

Histogram Metrics::AddHistogram(const std::string& name, const std::string& help,
                                const std::vector<double>& buckets, const MetricLabels& labels) {
  return Histogram(
      impl_->Get<prometheus::Histogram>(name, help, labels, prometheus::BuildHistogram, buckets));
}

void Metrics::Remove(const std::string& name, const MetricLabels& labels) {
  const std::lock_guard lock(impl_->mutex);
  const auto found = impl_->series.find(name);
  if (found == impl_->series.end()) return;
  std::visit(
      [&](auto& one) {
        std::erase_if(one.values, [&](const auto& entry) {
          if (!Includes(entry.first, labels)) return false;
          one.family->Remove(entry.second);
          return true;
        });
      },
      found->second);
}

void Metrics::OnRender(std::function<void()> refresh) {
  const std::lock_guard lock(impl_->refresh_mutex);
  impl_->refreshes.push_back(std::move(refresh));
}

std::string Metrics::Render() const {
  {
    const std::lock_guard lock(impl_->refresh_mutex);
    for (const auto& refresh : impl_->refreshes) refresh();
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, impl_->registry.Collect());
  return out.str();
}

}  // namespace aisp
