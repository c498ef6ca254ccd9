// Tenants: who may ask, by API key, and how much: requests at once, requests in a time, tokens in a
// time.
//
// A tenant is the name of a key (frontend/api_keys.h). Digests are compared in constant time. What
// is logged is the tenant, never the key. Keys and limits do not change after Load; what is counted
// belongs to the I/O thread, which alone may call Enter and Charge.
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

namespace aisp {

class Tenants {
 public:
  // Reads http.api_keys and http.api_keys_file. Errors name the line, never what stands in it.
  static Result<std::unique_ptr<Tenants>> Load(const Config& config);

  // The tenant of an Authorization header; "" when no keys are asked for. UNAUTHENTICATED says what
  // to send, or that the key has expired. `unix_s`: now, for tests.
  ApiResult<std::string> Authenticate(std::string_view authorization) const;
  ApiResult<std::string> Authenticate(std::string_view authorization, int64_t unix_s) const;

  // A request's places among those of its tenant in flight, one for each of its choices; gives them
  // back when destroyed, on whatever thread. It may outlive the Tenants: what waits for a thread
  // that stops goes last.
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
    ApiError error;  // RESOURCE_EXHAUSTED: which bound, and when there is room again
    Duration retry_after{};
  };
  // What it gets beside other tenants; a request of it has this priority (greater goes first).
  // `asked`: its class; nullopt: that of its key.
  TenantShare ShareOf(const std::string& tenant, int32_t priority,
                      std::optional<ServiceClass> asked = std::nullopt) const;
  // A request begins, with one choice as far as is known.
  tl::expected<Slot, Refusal> Enter(const std::string& tenant, Instant now);
  // The request has so many choices. INVALID_ARGUMENT when the tenant may never have so many.
  tl::expected<void, Refusal> Widen(const std::string& tenant, Slot* slot, int64_t choices);
  // A request ended after so many tokens, prompt and answer together. Its last request may take a
  // tenant beyond its quota: what it will generate is not known before.
  void Charge(const std::string& tenant, int64_t tokens, Instant now);

 private:
  struct State {
    TenantLimits limits;
    Slot::Count inflight = std::make_shared<std::atomic<int64_t>>(0);
    double requests_left = 0;  // refilled all the time, at most limits.requests->count
    Instant refilled = Instant{0};
    int64_t tokens_used = 0;  // since window_begin
    Instant window_begin = kNever;
  };
  Status Add(std::string_view entry, const std::string& where, const TenantLimits& defaults);
  static void Refill(State& state, Instant now);

  std::vector<ApiKey> keys_;
  std::map<std::string, State> states_;  // one for each tenant
};

// What salts the prefix cache: KV is shared only where this is equal. Different pairs give
// different scopes.
std::string CacheScope(std::string_view tenant, std::string_view salt);

}  // namespace aisp
