// LoraRequests: which LoRA adapters have requests, as the metric aisp_lora_requests_info. Inference
// gateways use it to place requests where their adapter is active. The I/O thread; the metric is
// read on others.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "common/metrics.h"

namespace aisp {

class LoraRequests {
 public:
  // No metric when `max_loras` is 0. `metrics` outlives it and is not rendered afterwards.
  LoraRequests(Metrics* metrics, MetricLabels labels, size_t max_loras);

  // One request that uses an adapter: waiting until Running is called, active until destroyed. A
  // default-constructed one has no adapter. May outlive its LoraRequests.
  class Use {
   public:
    Use() = default;
    Use(Use&& other) noexcept { *this = std::move(other); }
    Use& operator=(Use&& other) noexcept;
    ~Use() { Leave(); }
    void Running();

   private:
    friend class LoraRequests;
    struct Counts;
    void Leave();
    std::shared_ptr<Counts> counts_;
    std::string adapter_;
    bool running_ = false;
  };
  Use Enter(const std::string& adapter);

 private:
  const std::shared_ptr<Use::Counts> counts_;
};

}  // namespace aisp
