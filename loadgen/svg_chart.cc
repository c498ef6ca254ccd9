#include "loadgen/svg_chart.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace aisp::loadgen {
namespace {

constexpr double kWidth = 560, kHeight = 300;
constexpr double kLeft = 64, kRight = 16, kTop = 16, kBottom = 46;
constexpr size_t kMostDots = 3000;

struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;  // pixels
  bool log = false;
  double At(double value) const {
    const double share = log ? std::log(std::max(value, low) / low) / std::log(high / low)
                             : (value - low) / (high - low);
    return from + std::clamp(share, -0.02, 1.02) * (to - from);
  }
};

std::string Number(double value) {
  const double size = std::abs(value);
  if (size >= 1e6) return fmt::format("{:g}M", value / 1e6);
  if (size >= 1e4) return fmt::format("{:g}k", value / 1e3);
  return fmt::format("{:g}", value);
}

std::vector<double> LogTicks(double low, double high) {
  std::vector<double> out;
  const bool fine = high / low < 100;
  for (double decade = std::pow(10, std::floor(std::log10(low))); decade <= high; decade *= 10) {
    for (const double step : {1.0, 2.0, 5.0}) {
      const double tick = decade * step;
      if ((step == 1 || fine) && tick >= low * 0.999 && tick <= high * 1.001) out.push_back(tick);
    }
  }
  return out;
}

struct Range {
  double low = std::numeric_limits<double>::infinity();
  double high = -std::numeric_limits<double>::infinity();
  void Add(double value) {
    low = std::min(low, value);
    high = std::max(high, value);
  }
  bool empty() const { return low > high; }
};

Axis XAxis(const Chart& chart, Range range) {
  Axis out{range.low, range.high, kLeft, kWidth - kRight, chart.log_x};
  // At most three decades, values below are clamped. Less than one decade reads better on a linear
  // axis.
  constexpr double kDecades = 1e-3, kNarrow = 10;
  if (chart.log_x && range.high > range.low * kNarrow) {
    out.low = std::max(range.low, range.high * kDecades);
  } else if (chart.log_x) {
    out.log = false;
    const double margin = std::max(0.05 * (range.high - range.low), 0.01 * range.high);
    out.low = std::max(0.0, range.low - margin);
    out.high = range.high + margin;
  } else {
    out.low = std::min(0.0, range.low);
    if (out.high <= out.low) out.high = out.low + 1;
  }
  return out;
}

Axis YAxis(const Chart& chart, Range range) {
  Axis out{0, chart.y_max > 0 ? chart.y_max : range.high * 1.05, kHeight - kBottom, kTop, false};
  if (out.high <= 0) out.high = 1;
  return out;
}

void DrawGrid(const Chart& chart, const Axis& x, const Axis& y, std::string* out) {
  for (const double tick : Ticks(y.low, y.high, 5)) {
    const double at = y.At(tick);
    *out += fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)"
                        R"(<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="end">{}</text>)",
                        kLeft, kWidth - kRight, at, at, kLeft - 6, at + 4, Number(tick));
  }
  for (const double tick : x.log ? LogTicks(x.low, x.high) : Ticks(x.low, x.high, 7)) {
    const double at = x.At(tick);
    *out +=
        fmt::format(R"(<line class="grid" x1="{:.1f}" x2="{:.1f}" y1="{:.1f}" y2="{:.1f}"/>)"
                    R"(<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)",
                    at, at, kTop, kHeight - kBottom, at, kHeight - kBottom + 16, Number(tick));
  }
  *out += fmt::format(
      R"(<text class="axis" x="{:.1f}" y="{:.1f}" text-anchor="middle">{}</text>)"
      R"svg(<text class="axis" transform="translate(13 {:.1f}) rotate(-90)" text-anchor="middle">{}</text>)svg",
      (kLeft + kWidth - kRight) / 2, kHeight - 10, EscapeHtml(chart.x_label),
      (kTop + kHeight - kBottom) / 2, EscapeHtml(chart.y_label));
}

void DrawMarks(const Chart& chart, const Axis& x, std::string* out) {
  for (const auto& [value, label] : chart.x_marks) {
    if (value < x.low || value > x.high) continue;
    const double at = x.At(value);
    *out +=
        fmt::format(R"(<line class="mark" x1="{0:.1f}" x2="{0:.1f}" y1="{1:.1f}" y2="{2:.1f}"/>)"
                    R"(<text class="axis" x="{3:.1f}" y="{4:.1f}" text-anchor="end">{5}</text>)",
                    at, kTop, kHeight - kBottom, at - 4, kTop + 12, EscapeHtml(label));
  }
}

void DrawSeries(const Series& series, const Axis& x, const Axis& y, std::string* out) {
  if (series.points.empty()) return;
  if (!series.dots) {
    *out += fmt::format(R"(<polyline class="s{}" points=")", series.color);
    for (const auto& [px, py] : series.points) {
      *out += fmt::format("{:.1f},{:.1f} ", x.At(px), y.At(py));
    }
    *out += "\"/>";
  }
  // Lines with few points show them, with their values.
  constexpr size_t kFew = 60;
  if (!series.dots && series.points.size() > kFew) return;
  const size_t step = series.points.size() / kMostDots + 1;
  for (size_t i = 0; i < series.points.size(); i += step) {
    const auto& [px, py] = series.points[i];
    *out += fmt::format(R"(<circle class="d{}" cx="{:.1f}" cy="{:.1f}" r="{}">)", series.color,
                        x.At(px), y.At(py), series.dots ? "2" : "3");
    if (!series.dots) {
      *out += fmt::format("<title>{}: {:.4g}, {:.4g}</title>", EscapeHtml(series.name), px, py);
    }
    *out += "</circle>";
  }
}

}  // namespace

std::string EscapeHtml(std::string_view text) {
  std::string out;
  for (const char c : text) {
    switch (c) {
      case '&':
        out += "&amp;";
        break;
      case '<':
        out += "&lt;";
        break;
      case '>':
        out += "&gt;";
        break;
      case '"':
        out += "&quot;";
        break;
      default:
        out += c;
    }
  }
  return out;
}

std::vector<double> Ticks(double low, double high, int count) {
  std::vector<double> out;
  if (!(high > low) || count < 1) return out;
  const double rough = (high - low) / count;
  const double decade = std::pow(10, std::floor(std::log10(rough)));
  double step = 10 * decade;
  for (const double factor : {1.0, 2.0, 5.0}) {
    if (factor * decade >= rough) {
      step = factor * decade;
      break;
    }
  }
  const auto first = static_cast<int64_t>(std::ceil(low / step - 1e-9));
  const auto last = static_cast<int64_t>(std::floor(high / step + 1e-9));
  for (int64_t i = first; i <= last; ++i) out.push_back(static_cast<double>(i) * step);
  return out;
}

std::vector<std::pair<double, double>> CumulativePoints(std::vector<double> values) {
  std::vector<std::pair<double, double>> out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  const auto add = [&](double percent) {
    const auto rank = static_cast<size_t>(percent / 100 * static_cast<double>(values.size() - 1));
    out.emplace_back(values[rank], percent);
  };
  for (int i = 0; i < 198; ++i) add(i * 0.5);
  for (int i = 0; i <= 50; ++i) add(99 + i * 0.02);
  return out;
}

std::string ChartFigure(const Chart& chart) {
  Range xs, ys;
  for (const Series& series : chart.series) {
    for (const auto& [px, py] : series.points) {
      xs.Add(px);
      ys.Add(py);
    }
  }
  std::string out = "<figure><figcaption>" + EscapeHtml(chart.title) + "</figcaption>";
  if (xs.empty()) return out + "<p>No request gave a value.</p></figure>\n";
  const Axis x = XAxis(chart, xs);
  const Axis y = YAxis(chart, ys);
  out += fmt::format(R"(<svg viewBox="0 0 {} {}" role="img" aria-label="{}">)", kWidth, kHeight,
                     EscapeHtml(chart.title));
  DrawGrid(chart, x, y, &out);
  DrawMarks(chart, x, &out);
  for (const Series& series : chart.series) DrawSeries(series, x, y, &out);
  out += "</svg><div class=\"legend\">";
  for (const Series& series : chart.series) {
    if (series.points.empty()) continue;
    out +=
        fmt::format("<span><i class=\"b{}\"></i>{}</span>", series.color, EscapeHtml(series.name));
  }
  return out + "</div></figure>\n";
}

}  // namespace aisp::loadgen
