// FairShare: which of several tenants is served next, given what each has received so far. Weighted
// fair queueing in virtual time: a tenant's service is the number of tokens computed for it,
// divided by its weight. The tenant with the least service goes first.
//
// Only tenants with work compete. One that joins or returns starts at the least service of those
// that compete, so nobody saves up credit while idle. One that leaves ahead of the others is
// remembered until they have caught up, so that leaving and returning gains nothing. When no tenant
// has work, everything is forgotten. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/service_class.h"

namespace aisp {

// The tenant that a request belongs to, and the request's standing among others.
struct TenantShare {
  std::string name;                                         // "": everybody without a key
  uint32_t weight = 1;                                      // at least 1
  int32_t rank = 0;                                         // larger goes first, across all tenants
  ServiceClass service_class = ServiceClass::kInteractive;  // compared before the rank
  // After waiting this long at a worker, the request counts as interactive there; zero: never.
  Duration patience{};
  // How many tenants may exist, if the router knows; 0: unknown. Not on the wire.
  uint32_t tenants = 0;

  // Class and rank in one number; larger goes first.
  int64_t Standing() const { return rank - (static_cast<int64_t>(service_class) << 33); }
};

class FairShare {
 public:
  struct Account {
    std::string name;
    double weight = 1;
    double service = 0;  // tokens over weight
    size_t tenants = 0;  // how many tenants may exist
    int64_t work = 0;    // requests that have entered and not left
    int32_t index = -1;  // scratch space for code that lists the accounts
  };

  // Adds one request. The account keeps its address until its last request has left. The newest
  // weight counts.
  Account* Enter(const TenantShare& tenant);
  void Leave(Account* account);
  static void Charge(Account* account, int64_t tokens) {
    account->service += static_cast<double>(tokens) / account->weight;
  }

  // Whether the tenant may take one more of `limit` places when `taken` are in use; its waiting
  // request counts as work. It may hold up to 4 * weight * (free places): one tenant alone gets 4/5
  // of all, two get 4/9 each. Only one request per tenant may use the last places: as many as
  // tenants may exist, between limit/64 and limit/8.
  static bool MayTake(const Account& account, size_t taken, size_t limit);

  // Number of tenants with work.
  size_t active() const { return active_; }
  // Number of tenants with work or remembered.
  size_t known() const { return accounts_.size(); }

 private:
  // The least service of a tenant with work.
  double Floor() const;
  void Forget();

  std::map<std::string, Account> accounts_;
  size_t active_ = 0;
};

// Least service first, ties by name. A strict order of different accounts.
inline bool Precedes(const FairShare::Account& a, const FairShare::Account& b) {
  if (a.service != b.service) return a.service < b.service;
  return a.name < b.name;
}

}  // namespace aisp
