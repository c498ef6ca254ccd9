// FairShare: which of several tenants is next, by what each was given so far. Weighted fair
// queueing in virtual time: a tenant's service is the tokens computed for it over its weight, and
// the tenant with the least service goes first.
//
// Only tenants with work compete. One that comes, or comes back, starts where the least served of
// them stands: nobody saves up a claim while idle. One that leaves ahead of the others is
// remembered until they have caught up, so that coming back is no way to start anew. When nobody
// has work all is forgotten. One thread.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/service_class.h"

namespace aisp {

// On whose behalf something runs, and how it stands against the others'.
struct TenantShare {
  std::string name;     // "": everybody without a key
  uint32_t weight = 1;  // at least 1
  int32_t rank = 0;     // greater goes before every smaller one, of whatever tenant
  ServiceClass service_class = ServiceClass::kInteractive;  // counts before the rank
  // So long after a worker has got it, it counts as interactive there; zero: never.
  Duration patience{};
  // How many there may be, where a router knows; 0: not known. Not on the wire.
  uint32_t tenants = 0;

  // Class and rank in one number: greater goes before every smaller one.
  int64_t Standing() const { return rank - (static_cast<int64_t>(service_class) << 33); }
};

class FairShare {
 public:
  struct Account {
    std::string name;
    double weight = 1;
    double service = 0;  // tokens over weight
    size_t tenants = 0;  // that there may be
    int64_t work = 0;    // pieces that have entered and not left
    int32_t index = -1;  // scratch of whoever lists the accounts of a moment
  };

  // One more piece of work. The account stays where it is until its last piece has left. The newest
  // weight counts.
  Account* Enter(const TenantShare& tenant);
  void Leave(Account* account);
  static void Charge(Account* account, int64_t tokens) {
    account->service += static_cast<double>(tokens) / account->weight;
  }

  // Whether a tenant may take one of `limit` places of which `taken` are taken, its own piece that
  // wants it counted as work: four times what is left, times its weight (one alone has four of five
  // places, two have four of nine each), and one at most of the last places. These are as many as
  // there may be tenants, but no more than an eighth and no less than a 64th.
  static bool MayTake(const Account& account, size_t taken, size_t limit);

  // Tenants with work.
  size_t active() const { return active_; }
  // Those that are only remembered too.
  size_t known() const { return accounts_.size(); }

 private:
  // The least service of a tenant with work.
  double Floor() const;
  void Forget();

  std::map<std::string, Account> accounts_;
  size_t active_ = 0;
};

// Least service first; where it is equal, by name. A strict order of different accounts.
inline bool Precedes(const FairShare::Account& a, const FairShare::Account& b) {
  if (a.service != b.service) return a.service < b.service;
  return a.name < b.name;
}

}  // namespace aisp
