#include "frontend/lora_requests.h"

#include <utility>
#include <vector>

#include "common/strings.h"
#include "frontend/answer_ids.h"

namespace aisp {
namespace {

constexpr const char* kName = "aisp_lora_requests_info";

}  // namespace

struct LoraRequests::Use::Counts {
  std::mutex mutex;
  std::map<std::string, int> waiting, running;
  int64_t changed_unix_s = 0;

  void Change(std::map<std::string, int>* set, const std::string& adapter, int by) {
    if (((*set)[adapter] += by) == 0) set->erase(adapter);
    changed_unix_s = UnixTimeS();
  }
  static std::string Names(const std::map<std::string, int>& set) {
    std::vector<std::string> names;
    for (const auto& [name, count] : set) names.push_back(name);
    return Join(names, ",");
  }
};

LoraRequests::LoraRequests(Metrics* metrics, MetricLabels labels, size_t max_loras)
    : counts_(std::make_shared<Use::Counts>()) {
  if (max_loras == 0) return;
  // The adapters' names are labels, so the previous series is removed each time.
  metrics->OnRender([metrics, labels = std::move(labels), max_loras, counts = counts_] {
    MetricLabels now = labels;
    const std::lock_guard lock(counts->mutex);
    now.emplace_back("max_lora", std::to_string(max_loras));
    now.emplace_back("running_lora_adapters", Use::Counts::Names(counts->running));
    now.emplace_back("waiting_lora_adapters", Use::Counts::Names(counts->waiting));
    metrics->Remove(kName, labels);
    metrics
        ->AddGauge(kName,
                   "When the LoRA adapters with requests last changed, which the labels name, in "
                   "Unix time",
                   now)
        .Set(static_cast<double>(counts->changed_unix_s));
  });
}

LoraRequests::Use LoraRequests::Enter(const std::string& adapter) {
  Use use;
  use.counts_ = counts_;
  use.adapter_ = adapter;
  const std::lock_guard lock(counts_->mutex);
  counts_->Change(&counts_->waiting, adapter, 1);
  return use;
}

LoraRequests::Use& LoraRequests::Use::operator=(Use&& other) noexcept {
  if (this == &other) return *this;
  Leave();
  counts_ = std::move(other.counts_);
  adapter_ = std::move(other.adapter_);
  running_ = other.running_;
  return *this;
}

void LoraRequests::Use::Running() {
  if (counts_ == nullptr || std::exchange(running_, true)) return;
  const std::lock_guard lock(counts_->mutex);
  counts_->Change(&counts_->waiting, adapter_, -1);
  counts_->Change(&counts_->running, adapter_, 1);
}

void LoraRequests::Use::Leave() {
  if (counts_ == nullptr) return;
  const auto counts = std::exchange(counts_, nullptr);
  const std::lock_guard lock(counts->mutex);
  counts->Change(running_ ? &counts->running : &counts->waiting, adapter_, -1);
}

}  // namespace aisp
