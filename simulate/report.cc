#include "simulate/report.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "loadgen/metrics.h"

namespace aisp::simulate {
namespace {

using Json = nlohmann::ordered_json;
using loadgen::Percentile;

// Only interactive requests have limits.
bool HasLimits(const Served& request) { return !Yields(request.service_class); }

// Ascending; of completed requests that have limits.
std::vector<double> Values(const Outcome& outcome, double Served::*field, bool of_many_tokens) {
  std::vector<double> values;
  for (const Served& request : outcome.requests) {
    if (request.end != Served::End::kDone || !HasLimits(request)) continue;
    if (of_many_tokens && request.output_tokens < 2) continue;
    values.push_back(request.*field);
  }
  std::sort(values.begin(), values.end());
  return values;
}

int64_t Count(const Outcome& outcome, Served::End end) {
  return std::count_if(outcome.requests.begin(), outcome.requests.end(),
                       [&](const Served& request) { return request.end == end; });
}

int64_t GoodOnes(const Outcome& outcome, const Objective& limits) {
  return std::count_if(
      outcome.requests.begin(), outcome.requests.end(),
      [&](const Served& request) { return HasLimits(request) && request.Within(limits); });
}

double OutputTokens(const Outcome& outcome) {
  double tokens = 0;
  for (const Served& request : outcome.requests)
    tokens += static_cast<double>(request.output_tokens);
  return tokens;
}

double Decision(const Outcome& outcome, double percentile) {
  const std::vector<float>& all = outcome.decisions_us;
  if (all.empty()) return 0;
  const auto last = static_cast<double>(all.size() - 1);
  return all[static_cast<size_t>(last * percentile / 100)];
}

double MeanDecision(const Outcome& outcome) {
  double sum = 0;
  for (const float us : outcome.decisions_us) sum += us;
  return outcome.decisions_us.empty() ? 0 : sum / static_cast<double>(outcome.decisions_us.size());
}

double CachedPart(const Outcome& outcome) {
  if (outcome.prompt_tokens == 0) return 0;
  const double part = static_cast<double>(outcome.computed_prompt_tokens) /
                      static_cast<double>(outcome.prompt_tokens);
  return std::max(0.0, 1 - part);
}

// Relative prediction errors of completed requests, ascending.
std::vector<double> Errors(const Outcome& outcome, double Served::*measured,
                           double Served::*predicted) {
  std::vector<double> errors;
  for (const Served& request : outcome.requests) {
    if (request.end != Served::End::kDone || !HasLimits(request)) continue;
    if (request.*predicted <= 0 || request.*measured <= 0) continue;
    errors.push_back(std::abs(request.*predicted - request.*measured) / (request.*measured));
  }
  std::sort(errors.begin(), errors.end());
  return errors;
}

std::string ErrorsText(const Outcome& outcome) {
  const auto ttft = Errors(outcome, &Served::ttft_ms, &Served::predicted_ttft_ms);
  const auto tpot = Errors(outcome, &Served::tpot_ms, &Served::predicted_tpot_ms);
  if (ttft.empty()) return "";
  return fmt::format(
      "; predictions off by (median, p90): TTFT {:.1f}, {:.1f} %, TPOT {:.1f}, {:.1f} %",
      Percentile(ttft, 50) * 100, Percentile(ttft, 90) * 100, Percentile(tpot, 50) * 100,
      Percentile(tpot, 90) * 100);
}

// Results of one non-interactive class.
struct ClassFigures {
  int64_t all = 0, done = 0;
  double tokens = 0;
  std::vector<double> e2e_ms;  // ascending
};

ClassFigures FiguresOf(const Outcome& outcome, ServiceClass service_class) {
  ClassFigures f;
  for (const Served& request : outcome.requests) {
    if (request.service_class != service_class) continue;
    ++f.all;
    if (request.end != Served::End::kDone) continue;
    ++f.done;
    f.tokens += static_cast<double>(request.output_tokens);
    f.e2e_ms.push_back(request.e2e_ms);
  }
  std::sort(f.e2e_ms.begin(), f.e2e_ms.end());
  return f;
}

constexpr ServiceClass kYielding[] = {ServiceClass::kBatch, ServiceClass::kBestEffort};

std::string ClassesText(const Outcome& outcome) {
  std::string out;
  for (const ServiceClass service_class : kYielding) {
    const ClassFigures f = FiguresOf(outcome, service_class);
    if (f.all == 0) continue;
    out += fmt::format(
        "  {}: {} of {} done, {:.0f} tokens/s, whole answers after (median, p99) {:.1f}, {:.1f} "
        "s\n",
        ServiceClassName(service_class), f.done, f.all,
        outcome.seconds > 0 ? f.tokens / outcome.seconds : 0, Percentile(f.e2e_ms, 50) * 1e-3,
        Percentile(f.e2e_ms, 99) * 1e-3);
  }
  return out;
}

std::string ReasonsText(const Outcome& outcome) {
  std::vector<std::string> parts;
  parts.reserve(outcome.reasons.size());
  for (const auto& [reason, count] : outcome.reasons)
    parts.push_back(fmt::format("{} {}", reason, count));
  return fmt::format("{}", fmt::join(parts, ", "));
}

// Times at which the roles changed, at most the first few.
std::string RolesText(const Outcome& outcome) {
  constexpr size_t kMost = 12;
  std::vector<std::string> parts;
  std::string last;
  for (const Outcome::Roles& r : outcome.roles) {
    if (r.changing > 0) continue;
    std::string now = fmt::format("{}P{}D", r.prefill, r.decode);
    if (r.parked > 0) now += fmt::format(" and {} parked", r.parked);
    if (now == last) continue;
    parts.push_back(fmt::format("{} at {:.0f} s", now, r.at_s));
    last = std::move(now);
  }
  const bool more = parts.size() > kMost;
  if (more) parts.resize(kMost);
  return fmt::format("{} changes of roles: {}{}", outcome.role_changes, fmt::join(parts, ", "),
                     more ? " ..." : "");
}

Json Distribution(const std::vector<double>& sorted, int points) {
  Json json = {{"p50", Percentile(sorted, 50)},
               {"p90", Percentile(sorted, 90)},
               {"p99", Percentile(sorted, 99)}};
  for (int i = 0; i <= points && points > 0; ++i)
    json["cdf"].push_back(Percentile(sorted, 100.0 * i / points));
  return json;
}

}  // namespace

double Attainment(const Outcome& outcome, const Objective& limits) {
  const auto all = std::count_if(outcome.requests.begin(), outcome.requests.end(), HasLimits);
  if (all == 0) return 0;
  return static_cast<double>(GoodOnes(outcome, limits)) / static_cast<double>(all);
}

std::string Table(const std::vector<Row>& rows, const Objective& limits) {
  std::string out = fmt::format(
      "{:<14} {:>8} {:>8} {:>6} {:>9} {:>9} {:>9} {:>7} {:>7} {:>7} {:>5} {:>5} {:>8} {:>8} "
      "{:>5}\n",
      "policy", "rate/s", "good/s", "good", "TTFT p50", "p90", "p99", "TPOT", "p90", "cached", "P",
      "D", "refused", "us/place", "p99");
  for (const Row& row : rows) {
    const Outcome& o = row.outcome;
    const std::vector<double> ttft = Values(o, &Served::ttft_ms, false);
    const std::vector<double> tpot = Values(o, &Served::tpot_ms, true);
    const double per_s = o.seconds > 0 ? 1 / o.seconds : 0;
    out += fmt::format(
        "{:<14} {:>8.2f} {:>8.2f} {:>5.1f}% {:>9.1f} {:>9.1f} {:>9.1f} {:>7.2f} {:>7.2f} {:>6.1f}% "
        "{:>4.0f}% {:>4.0f}% {:>8} {:>8.1f} {:>5.0f}\n",
        row.policy, row.rate, static_cast<double>(GoodOnes(o, limits)) * per_s,
        Attainment(o, limits) * 100, Percentile(ttft, 50), Percentile(ttft, 90),
        Percentile(ttft, 99), Percentile(tpot, 50), Percentile(tpot, 90), CachedPart(o) * 100,
        o.prefill_busy * 100, o.decode_busy * 100, Count(o, Served::End::kRefused), MeanDecision(o),
        Decision(o, 99));
    if (const int64_t failed = Count(o, Served::End::kFailed); failed > 0)
      out += fmt::format("  {} of {} have no answer{}\n", failed, o.requests.size(),
                         o.given_up ? ": the run was ended early" : "");
    out += "  " + ReasonsText(o) + ErrorsText(o) + "\n";
    out += ClassesText(o);
    if (!o.roles.empty()) out += "  " + RolesText(o) + "\n";
  }
  return out;
}

std::string ToJson(const std::vector<Row>& rows, const Objective& limits, int points) {
  Json all = Json::array();
  for (const Row& row : rows) {
    const Outcome& o = row.outcome;
    Json json;
    json["policy"] = row.policy;
    json["request_rate"] = row.rate;
    json["requests"] = o.requests.size();
    json["completed"] = Count(o, Served::End::kDone);
    json["refused"] = Count(o, Served::End::kRefused);
    json["failed"] = Count(o, Served::End::kFailed);
    json["ended_early"] = o.given_up;
    json["good"] = GoodOnes(o, limits);
    json["attainment"] = Attainment(o, limits);
    json["request_goodput"] =
        o.seconds > 0 ? static_cast<double>(GoodOnes(o, limits)) / o.seconds : 0;
    json["output_throughput"] = o.seconds > 0 ? OutputTokens(o) / o.seconds : 0;
    json["seconds"] = o.seconds;
    json["wall_seconds"] = o.wall_seconds;
    json["ttft_ms"] = Distribution(Values(o, &Served::ttft_ms, false), points);
    json["tpot_ms"] = Distribution(Values(o, &Served::tpot_ms, true), points);
    json["e2el_ms"] = Distribution(Values(o, &Served::e2e_ms, false), points);
    json["prefill_utilisation"] = o.prefill_busy;
    json["decode_utilisation"] = o.decode_busy;
    json["cached_part"] = CachedPart(o);
    json["preemptions"] = o.preemptions;
    json["reasons"] = o.reasons;
    for (const ServiceClass service_class : kYielding) {
      const ClassFigures f = FiguresOf(o, service_class);
      if (f.all == 0) continue;
      json["classes"][std::string(ServiceClassName(service_class))] = {
          {"requests", f.all},
          {"completed", f.done},
          {"output_throughput", o.seconds > 0 ? f.tokens / o.seconds : 0},
          {"e2el_ms", Distribution(f.e2e_ms, /*points=*/0)}};
    }
    json["ttft_error"] =
        Distribution(Errors(o, &Served::ttft_ms, &Served::predicted_ttft_ms), /*points=*/0);
    json["tpot_error"] =
        Distribution(Errors(o, &Served::tpot_ms, &Served::predicted_tpot_ms), /*points=*/0);
    for (const Outcome::Roles& r : o.roles)
      json["roles"].push_back({r.at_s, r.prefill, r.decode, r.parked, r.changing});
    if (!o.roles.empty()) json["role_changes"] = o.role_changes;
    json["decision_us"] = {{"mean", MeanDecision(o)},
                           {"p50", Decision(o, 50)},
                           {"p99", Decision(o, 99)},
                           {"max", Decision(o, 100)}};
    all.push_back(std::move(json));
  }
  return all.dump(2) + "\n";
}

}  // namespace aisp::simulate
