#include "commands/status_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

namespace aisp {
namespace {

using Json = nlohmann::json;

std::string Number(const Json& value) {
  if (!value.is_number()) return "-";
  const double v = value.get<double>();
  return v >= 1000 ? fmt::format("{:.0f}", v) : fmt::format("{:.3g}", v);
}

std::string Ms(const Json& value) { return value.is_number() ? Number(value) + " ms" : "-"; }

std::string Painted(std::string text, std::string_view state, bool color) {
  if (!color) return text;
  const char* code = state == "ready" ? "32" : state == "not ready" ? "31" : "33";
  return fmt::format("\x1b[{}m{}\x1b[0m", code, text);
}

std::string Bar(double share, size_t width) {
  const auto full =
      static_cast<size_t>(std::lround(std::clamp(share, 0.0, 1.0) * static_cast<double>(width)));
  return std::string(full, '#') + std::string(width - full, '.');
}

// Cut to `columns`. Colour codes need not be counted, since only short cells have them.
void AddLine(std::string line, size_t columns, std::string* out) {
  while (line.ends_with(' ')) line.pop_back();
  if (line.size() > columns && line.find('\x1b') == std::string::npos) line.resize(columns);
  *out += line + "\n";
}

std::string WorkerLine(const Json& w, size_t name_width, bool color) {
  const auto total = w.value("total_blocks", 0.0);
  const double used = total > 0 ? (total - w.value("free_blocks", 0.0)) / total : 0;
  const std::string state = w.value("state", "");
  std::string line =
      fmt::format("{:<{}} {:<8}", w.value("id", ""), name_width, w.value("role", ""));
  line += Painted(fmt::format("{:<10}", state), state, color);
  line += fmt::format("{:>8}{:>8}{:>10}  {} {:>3.0f} %  {:>7}  {}", w.value("running", 0),
                      w.value("waiting", 0), w.value("queued_prefill_tokens", int64_t{0}),
                      Bar(used, 10), used * 100, w.value("pid", int64_t{0}), w.value("reason", ""));
  return line;
}

void AddWorkers(const Json& overview, size_t columns, bool color, std::string* out) {
  const Json workers = overview.value("workers", Json::array());
  if (workers.empty()) return AddLine("no worker is registered", columns, out);
  size_t name_width = 6;
  for (const Json& w : workers) name_width = std::max(name_width, w.value("id", "").size());
  AddLine(fmt::format("{:<{}} {:<8}{:<10}{:>8}{:>8}{:>10}  {:<16}  {:>7}", "worker", name_width,
                      "role", "state", "running", "waiting", "prefill", "KV in use", "pid"),
          columns, out);
  for (const Json& w : workers) AddLine(WorkerLine(w, name_width, color), columns, out);
}

size_t DepthOf(const Json& spans, const Json& span) {
  size_t depth = 0;
  for (int at = span.value("parent", -1); at >= 0 && depth < 8; ++depth)
    at = spans[static_cast<size_t>(at)].value("parent", -1);
  return depth;
}

// Depth first: children follow their parent, ordered by time.
void DepthFirst(const Json& spans, int parent, std::vector<size_t>* order) {
  std::vector<size_t> children;
  for (size_t i = 0; i < spans.size(); ++i) {
    if (spans[i].value("parent", -1) == parent) children.push_back(i);
  }
  std::stable_sort(children.begin(), children.end(), [&spans](size_t a, size_t b) {
    return spans[a].value("start_ms", 0.0) < spans[b].value("start_ms", 0.0);
  });
  for (const size_t child : children) {
    order->push_back(child);
    DepthFirst(spans, static_cast<int>(child), order);
  }
}

std::string AttributesOf(const Json& span) {
  std::string out;
  const Json attributes = span.value("attributes", Json::object());
  for (const auto& [key, value] : attributes.items()) {
    const std::string_view name(key);
    out += fmt::format("{}{}={}", out.empty() ? "" : " ",
                       name.starts_with("aisp.") ? name.substr(5) : name,
                       value.is_string() ? value.get<std::string>() : value.dump());
  }
  if (const std::string error = span.value("error", ""); !error.empty())
    out += fmt::format("{}error: {}", out.empty() ? "" : " ", error);
  return out;
}

}  // namespace

std::string OverviewText(const Json& o, size_t columns, bool color) {
  std::string out;
  const Json now = o.value("now", Json::object());
  const Json ttft = now.value("ttft_ms", Json::object());
  const Json tpot = now.value("tpot_ms", Json::object());
  const bool ready = o.value("ready", false);
  const std::string state = ready ? "ready" : "not ready";
  std::string head = fmt::format("aisp {}  {}  ", o.value("version", ""), o.value("model", ""));
  head += Painted(state, state, color);
  if (!ready) head += ": " + o.value("reason", "");
  head += fmt::format("  up {:.0f} s", o.value("uptime_s", 0.0));
  AddLine(head, columns, &out);
  const auto at = [](const Json& object, const char* key) {
    return object.contains(key) ? object[key] : Json();
  };
  AddLine(fmt::format("last {} s: {} tokens/s, {} requests/s, {} errors/s, {} in flight",
                      now.value("seconds", 10), Number(at(now, "tokens_per_s")),
                      Number(at(now, "requests_per_s")), Number(at(now, "errors_per_s")),
                      o.value("active", 0)),
          columns, &out);
  AddLine(fmt::format("TTFT p50 {}, p90 {}, p99 {}; TPOT p50 {}, p90 {}, p99 {}",
                      Ms(at(ttft, "p50")), Ms(at(ttft, "p90")), Ms(at(ttft, "p99")),
                      Ms(at(tpot, "p50")), Ms(at(tpot, "p90")), Ms(at(tpot, "p99"))),
          columns, &out);
  out += "\n";
  AddWorkers(o, columns, color, &out);
  const Json moves = o.value("moves", Json::array());
  if (!moves.empty()) out += "\nKV blocks moved since the start:\n";
  for (const Json& m : moves) {
    AddLine(fmt::format("  {} -> {} over {}: {} blocks of {} prompts", m.value("from", ""),
                        m.value("to", ""), m.value("transport", ""), m.value("blocks", int64_t{0}),
                        m.value("requests", int64_t{0})),
            columns, &out);
  }
  return out;
}

std::string TraceText(const Json& trace, size_t columns) {
  const Json spans = trace.value("spans", Json::array());
  if (spans.empty()) return "no span\n";
  std::string out = fmt::format("request {}  trace {}{}\n\n", trace.value("request", ""),
                                trace.value("trace", ""),
                                trace.value("finished", true) ? "" : "  (still running)");
  const double whole = std::max(1e-6, spans[0].value("ms", 0.0));
  constexpr size_t kBar = 24, kName = 18;
  std::vector<size_t> order;
  DepthFirst(spans, -1, &order);
  for (const size_t i : order) {
    const Json& span = spans[i];
    const double start = span.value("start_ms", 0.0);
    const double took = span.value("ms", 0.0);
    const auto column = [&](double at) {
      return static_cast<size_t>(std::clamp(at / whole, 0.0, 1.0) * kBar);
    };
    const size_t from = std::min(column(start), kBar - 1);
    const size_t length = std::max<size_t>(1, std::min(column(start + took), kBar) - from);
    std::string bar(kBar, ' ');
    bar.replace(from, length, length, span.value("open", false) ? '~' : '#');
    const std::string name = std::string(2 * DepthOf(spans, span), ' ') + span.value("name", "");
    AddLine(fmt::format("{:<{}} {:>10.3f} {:>10.3f} ms |{}| {}", name, kName, start, took, bar,
                        AttributesOf(span)),
            columns, &out);
  }
  if (const auto dropped = trace.value("dropped_spans", int64_t{0}); dropped > 0)
    out += fmt::format("... and {} more spans that were not kept\n", dropped);
  return out;
}

std::string TraceListText(const Json& list) {
  std::string out;
  for (const Json& trace : list.value("traces", Json::array())) {
    const std::string error = trace.value("error", "");
    out += fmt::format("{}  {:>10.1f} ms  {}\n", trace.value("request", ""), trace.value("ms", 0.0),
                       !trace.value("finished", true) ? "running"
                       : error.empty()                ? "ok"
                                                      : error);
  }
  return out.empty() ? "no request yet\n" : out;
}

}  // namespace aisp
