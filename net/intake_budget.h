// IntakeBudget: who holds how many bytes of request bodies. A party is a tenant, or for those
// without a key the address that they come from (addresses of one IPv6 /64 network are one).
//
// A body counts as it arrives, never as it is announced: towards its party until it is whole,
// towards the total until its answer is complete. Plain counters; one thread (the loop). A Share
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

  // One request's body; gives everything back when destroyed.
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
    // The body now takes so many bytes. When refused it stays as it was.
    Grown GrowTo(size_t bytes);
    // The body is complete: its party may send others.
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

// The party of a peer without a key: "192.0.2.7", or "2001:db8:0:1::/64" for any address of that
// network.
std::string AddressParty(const unsigned char* v6_bytes);

}  // namespace aisp
