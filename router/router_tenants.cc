// What tenants get of this router: places in flight, and turns where requests wait for a worker.
#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

#include "router/router_impl.h"

namespace aisp {
namespace {

// A tenant takes at most so many times the places that are left, times its weight. So one alone has
// four of five places, two have four of nine each, and who comes new always finds some.
constexpr double kShareOfRest = 4;

}  // namespace

Status Router::Impl::CheckShare(const FairShare::Account& tenant, size_t taken, int32_t limit) {
  if (tenant.name.empty()) return {};  // everybody without a key
  const auto rest = static_cast<double>(limit) - static_cast<double>(taken);
  const double most = kShareOfRest * tenant.weight * rest;
  if (static_cast<double>(tenant.work) <= most) return {};
  return ResourceExhausted(
      fmt::format("this tenant has {} requests in flight and {:.0f} of {} places are left, which "
                  "are kept for others; retry later",
                  tenant.work - 1, rest, limit));
}

// By virtual start: where a tenant stands once what it has before in line was placed.
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
