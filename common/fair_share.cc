#include "common/fair_share.h"

#include <algorithm>
#include <limits>

#include "common/check.h"

namespace aisp {

double FairShare::Floor() const {
  double least = std::numeric_limits<double>::infinity();
  for (const auto& [name, account] : accounts_) {
    if (account.work > 0) least = std::min(least, account.service);
  }
  return least;
}

FairShare::Account* FairShare::Enter(const TenantShare& tenant) {
  const auto [it, is_new] = accounts_.try_emplace(tenant.name);
  Account& account = it->second;
  if (is_new) account.name = tenant.name;
  account.weight = std::max(1u, tenant.weight);
  account.tenants = tenant.tenants;
  if (account.work == 0) {
    if (active_ > 0) account.service = std::max(account.service, Floor());
    ++active_;
  }
  ++account.work;
  return &account;
}

void FairShare::Leave(Account* account) {
  AISP_CHECK(account->work > 0);
  if (--account->work > 0) return;
  --active_;
  Forget();
}

// Without the rule for the last places, many tenants with little work each could fill the queue
// together. So a tenant that already has work gets none of the last places.
bool FairShare::MayTake(const Account& account, size_t taken, size_t limit) {
  constexpr double kShareOfRest = 4;
  constexpr size_t kLeast = 64, kMost = 8;
  if (taken >= limit) return false;
  const size_t rest = limit - taken;
  const size_t last = std::max(limit / kLeast, std::min(account.tenants, limit / kMost));
  if (account.work > 1 && rest <= last) return false;
  return static_cast<double>(account.work) <=
         kShareOfRest * account.weight * static_cast<double>(rest);
}

// An idle account at or below the floor need not be kept: on its return Enter would raise it to the
// floor anyway.
void FairShare::Forget() {
  const double floor = Floor();
  std::erase_if(accounts_, [&](const auto& entry) {
    return entry.second.work == 0 && (active_ == 0 || entry.second.service <= floor);
  });
}

}  // namespace aisp
