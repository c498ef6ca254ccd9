// What `aisp status`, `aisp top` and `aisp trace` print, from what a router's admin API answers.
// Pure: any thread.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

namespace aisp {

// GET /admin/overview as lines of text, at most `columns` wide; `color`: with ANSI colours.
std::string OverviewText(const nlohmann::json& overview, size_t columns, bool color);

// GET /admin/trace/ID: one line per span, indented below its parent, with a bar of its place in
// time.
std::string TraceText(const nlohmann::json& trace, size_t columns);

// GET /admin/trace: one line per request.
std::string TraceListText(const nlohmann::json& list);

}  // namespace aisp
