// Shares of tenants: requests in flight, and turns where requests wait for a worker.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "router/router_impl.h"

namespace aisp {

Status Router::Impl::CheckShare(const FairShare::Account& tenant, size_t taken, int32_t limit) {
  if (tenant.name.empty()) return {};  // requests without a key
  if (FairShare::MayTake(tenant, taken, static_cast<size_t>(limit))) return {};
  return ResourceExhausted(
      fmt::format("this tenant has {} requests in flight and {} of {} places are left, which "
                  "are kept for others; retry later",
                  tenant.work - 1, limit - static_cast<int64_t>(taken), limit));
}

// Order by virtual start: the tenant's position after its earlier waiting requests are placed.
std::vector<RequestId> Router::Impl::InTurn(const std::set<RequestId>& waiting) {
  std::map<FairShare::Account*, std::vector<const Request*>> lanes;
  for (const RequestId id : waiting) {
    const Request& request = requests.at(id.value);
    lanes[request.account].push_back(&request);
  }
  using Turn = std::tuple<int64_t, double, std::string_view, size_t, RequestId>;
  std::vector<Turn> turns;
  for (auto& [account, lane] : lanes) {
    std::stable_sort(lane.begin(), lane.end(), [](const Request* a, const Request* b) {
      const RouterRequest &x = a->spec, &y = b->spec;
      return std::tuple(x.tenant.Standing(), x.priority) >
             std::tuple(y.tenant.Standing(), y.priority);
    });
    double start = account->service;
    for (size_t i = 0; i < lane.size(); ++i) {
      turns.emplace_back(-lane[i]->spec.tenant.Standing(), start, account->name, i, lane[i]->id);
      start += static_cast<double>(lane[i]->length()) / account->weight;
    }
  }
  std::sort(turns.begin(), turns.end());
  std::vector<RequestId> order;
  order.reserve(turns.size());
  for (const Turn& turn : turns) order.push_back(std::get<RequestId>(turn));
  return order;
}

}  // namespace aisp
