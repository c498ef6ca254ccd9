// LoraRequests: which LoRA adapters have requests, as the metric by which gateways of inference
// place requests where an adapter is at work already (aisp_lora_requests_info). The I/O thread; the
// metric is read on others.
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
  // Without `max_loras` nothing is shown. The metrics outlive it, and are rendered no more after.
  LoraRequests(Metrics* metrics, MetricLabels labels, size_t max_loras);

  // A request with an adapter: waiting until Running, and there as long as it lives. One that is
  // default-made has none. It may outlive what made it.
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
