// Tenants: who may ask, by API key, and how much at once.
//
// A tenant is the name of a key (NAME:KEY), or for a key without a name the first digits of its SHA-256. Keys themselves are kept
// as SHA-256 only and compared in constant time. What is logged is the tenant, never the key. Immutable after Load but for the
// counts, which belong to the I/O thread.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "api/error.h"
#include "config/config.h"

namespace aisp {

class Tenants {
 public:
  // Reads http.api_keys and http.api_keys_file. Errors name the line, never what stands in it.
  static Result<std::unique_ptr<Tenants>> Load(const Config& config);

  // The tenant of an Authorization header; "" when no keys are asked for. UNAUTHENTICATED says what to send.
  ApiResult<std::string> Authenticate(std::string_view authorization) const;

  // One request of a tenant in flight; gives its place back when destroyed. Tenants outlive their slots.
  class Slot {
   public:
    Slot() = default;
    Slot(Slot&& other) noexcept : count_(std::exchange(other.count_, nullptr)) {}
    Slot& operator=(Slot&& other) noexcept {
      std::swap(count_, other.count_);
      return *this;
    }
    ~Slot() {
      if (count_ != nullptr) --*count_;
    }

   private:
    friend class Tenants;
    explicit Slot(int64_t* count) : count_(count) { ++*count_; }
    int64_t* count_ = nullptr;
  };
  // RESOURCE_EXHAUSTED when the tenant has all the requests that http.max_inflight_per_key allows.
  ApiResult<Slot> Enter(const std::string& tenant);

 private:
  using Digest = std::array<unsigned char, 32>;
  struct Key {
    Digest digest;
    std::string tenant;
  };

  static Digest DigestOf(std::string_view key);
  Status Add(std::string_view entry, const std::string& where);

  std::vector<Key> keys_;
  int64_t max_inflight_ = 0;
  std::map<std::string, int64_t> inflight_;  // one for each tenant
};

// What salts the prefix cache: KV is shared only where this is equal. Different pairs give different scopes.
std::string CacheScope(std::string_view tenant, std::string_view salt);

}  // namespace aisp
