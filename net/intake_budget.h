// IntakeBudget: the bytes of request bodies, per party and in total. A party is a tenant, or the
// client's address if it has no key (a /64 network of IPv6 counts as one).
//
// Bytes count as they arrive, not as announced: towards the party until the body is complete,
// towards the total until the answer is complete. Plain counters; one thread (the loop). A Share
// must not outlive the budget.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>

namespace aisp {

class IntakeBudget {
 public:
  struct Limits {
    size_t total_bytes = 0;
    size_t bytes_per_party = 0;
  };
  explicit IntakeBudget(const Limits& limits) : limits_(limits) {}
  IntakeBudget(const IntakeBudget&) = delete;
  IntakeBudget& operator=(const IntakeBudget&) = delete;

  // The bytes of one request; returned on destruction.
  class Share {
   public:
    Share() = default;
    Share(IntakeBudget* budget, std::string party) : budget_(budget), party_(std::move(party)) {}
    Share(Share&& other) noexcept { *this = std::move(other); }
    Share& operator=(Share&& other) noexcept {
      std::swap(budget_, other.budget_);
      std::swap(party_, other.party_);
      std::swap(bytes_, other.bytes_);
      std::swap(whole_, other.whole_);
      return *this;
    }
    ~Share() { Clear(); }

    enum class Grown { kYes, kTotalFull, kPartyFull };
    // Sets the size of the body. If refused, the size is unchanged.
    Grown GrowTo(size_t bytes);
    // The body is complete: it no longer counts towards its party.
    void Whole();

   private:
    void Clear();
    IntakeBudget* budget_ = nullptr;
    std::string party_;
    size_t bytes_ = 0;
    bool whole_ = false;
  };

  size_t total() const { return total_; }
  size_t of(const std::string& party) const;

 private:
  void Add(const std::string& party, size_t bytes);
  void Remove(const std::string& party, size_t bytes);

  const Limits limits_;
  size_t total_ = 0;
  std::unordered_map<std::string, size_t> parties_;  // only those that hold some
};

// The party of a client without a key: "192.0.2.7", or "2001:db8:0:1::/64" for its network.
std::string AddressParty(const unsigned char* v6_bytes);

}  // namespace aisp
