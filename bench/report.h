// How a benchmark says what it measured: one JSON object a line on stdout, {"name", "value", "unit", "target", "ok"}, so
// that runs can be collected and compared. `target` is an upper bound where `value` has one; without, it is null.
#pragma once

#include <fmt/format.h>

#include <cstdio>
#include <optional>
#include <string_view>

namespace aisp {

inline void ReportBench(std::string_view name, double value, std::string_view unit,
                        std::optional<double> at_most = {}) {
  const std::string target = at_most ? fmt::format("{:.3f}", *at_most) : "null";
  const bool ok = !at_most || value <= *at_most;
  fmt::print(
      "{{\"name\": \"{}\", \"value\": {:.3f}, \"unit\": \"{}\", \"target\": {}, \"ok\": {}}}\n",
      name, value, unit, target, ok);
  std::fflush(stdout);
}

}  // namespace aisp
