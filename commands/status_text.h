// Formats a router's admin API answers for `aisp status`, `aisp top` and `aisp trace`. Pure: any
// thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace aisp {

// Formats GET /admin/overview, at most `columns` wide; `color`: with ANSI colours.
std::string OverviewText(const nlohmann::json& overview, size_t columns, bool color);

// Formats GET /admin/trace/ID: one line per span, indented below its parent, with a bar of its
// time.
std::string TraceText(const nlohmann::json& trace, size_t columns);

// Formats GET /admin/trace: one line per request.
std::string TraceListText(const nlohmann::json& list);

}  // namespace aisp
