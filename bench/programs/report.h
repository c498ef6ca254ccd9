// Output of benchmarks: one JSON object per line on stdout, {"name", "value", "unit", "target",
// "ok"}, so that runs can be collected and compared. `target` is the bound of `value`, such as "<=
// 50", or null.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string>
#include <string_view>

namespace aisp {

struct BenchTarget {
  std::optional<double> at_most;
  std::optional<double> at_least;
};
inline BenchTarget AtMost(double bound) { return {bound, {}}; }
inline BenchTarget AtLeast(double bound) { return {{}, bound}; }

inline void ReportBench(std::string_view name, double value, std::string_view unit,
                        const BenchTarget& target = {}) {
  std::string shown = "null";
  if (target.at_most) shown = fmt::format("\"<= {}\"", *target.at_most);
  if (target.at_least) shown = fmt::format("\">= {}\"", *target.at_least);
  const bool ok = (!target.at_most || value <= *target.at_most) &&
                  (!target.at_least || value >= *target.at_least);
  fmt::print(
      "{{\"name\": \"{}\", \"value\": {:.3f}, \"unit\": \"{}\", \"target\": {}, \"ok\": {}}}\n",
      name, value, unit, shown, ok);
  std::fflush(stdout);
}

}  // namespace aisp
