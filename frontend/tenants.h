// Tenants: authentication by API key, and limits per key: requests in flight, requests per time,
// tokens per time.
//
// A tenant is the name of a key (frontend/api_keys.h). Digests are compared in constant time. The
// log shows the tenant, never the key. Keys and limits do not change after Load; counters belong to
// the I/O thread, which alone may call Enter and Charge.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "common/fair_share.h"
#include "config/config.h"
#include "frontend/api_keys.h"
#include "router/policy.h"

namespace aisp {

class Tenants {
 public:
  // Reads http.api_keys and http.api_keys_file. Errors name the line but never quote it.
  static Result<std::unique_ptr<Tenants>> Load(const Config& config);

  // The tenant of an Authorization header; "" when keys are not required. UNAUTHENTICATED says what
  // to send, or that the key has expired. `unix_s`: the current time, for tests.
  ApiResult<std::string> Authenticate(std::string_view authorization) const;
  ApiResult<std::string> Authenticate(std::string_view authorization, int64_t unix_s) const;

  // A request's share of its tenant's limit in flight, one place per choice. The destructor, on any
  // thread, returns them. May outlive the Tenants.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept
        : count_(std::move(other.count_)), places_(std::exchange(other.places_, 0)) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(count_, other.count_);
      std::swap(places_, other.places_);
      return *this;
    }
    ~Slot() {
      if (count_ != nullptr) *count_ -= places_;
    }

   private:
    friend class Tenants;
    using Count = std::shared_ptr<std::atomic<int64_t>>;
    explicit Slot(Count count) : count_(std::move(count)) { Take(1); }
    void Take(int64_t places) {
      *count_ += places;
      places_ += places;
    }
    Count count_;
    int64_t places_ = 0;
  };
  struct Refusal {
    ApiError error;  // RESOURCE_EXHAUSTED: the limit, and when a retry may succeed
    Duration retry_after{};
  };
  // The share of `tenant` for a request with this priority (larger first). `asked`: the request's
  // class; nullopt: that of its key.
  TenantShare ShareOf(const std::string& tenant, int32_t priority,
                      std::optional<ServiceClass> asked = std::nullopt) const;
  // The SLO of a request that names `asked`: what it does not name is that of its tenant's key.
  Objective ObjectiveOf(const std::string& tenant, Objective asked) const;
  // Starts a request, counted as one choice.
  tl::expected<Slot, Refusal> Enter(const std::string& tenant, Instant now);
  // Raises the request to `choices`. INVALID_ARGUMENT when they exceed the tenant's limit alone.
  tl::expected<void, Refusal> Widen(const std::string& tenant, Slot* slot, int64_t choices);
  // Charges a finished request for its prompt and answer tokens. The last request may exceed the
  // quota, since its length is not known in advance.
  void Charge(const std::string& tenant, int64_t tokens, Instant now);

 private:
  struct State {
    TenantLimits limits;
    Slot::Count inflight = std::make_shared<std::atomic<int64_t>>(0);
    double requests_left = 0;  // refilled continuously, at most limits.requests->count
    Instant refilled = Instant{0};
    int64_t tokens_used = 0;  // since window_begin
    Instant window_begin = kNever;
  };
  Status Add(std::string_view entry, const std::string& where, const TenantLimits& defaults);
  static void Refill(State& state, Instant now);

  std::vector<ApiKey> keys_;
  std::map<std::string, State> states_;  // one per tenant
};

// The salt of the prefix cache: KV is shared only between equal scopes. Different pairs give
// different scopes.
std::string CacheScope(std::string_view tenant, std::string_view salt);

}  // namespace aisp
