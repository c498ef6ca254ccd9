// Line and dot charts as inline SVG, coloured by the page's style sheet (classes s0 to s5, axis,
// grid, mark), so that they adapt to light and dark. Pure.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace aisp::loadgen {

struct Series {
  std::string name = {};
  std::vector<std::pair<double, double>> points = {};
  int color = 0;      // 0 to 5
  bool dots = false;  // without a line
};

struct Chart {
  std::string title = {};
  std::string x_label = {}, y_label = {};
  bool log_x = false;
  double y_max = 0;  // 0: from the values
  std::vector<Series> series = {};
  std::vector<std::pair<double, std::string>> x_marks = {};  // labelled dashed lines: limits
};

// A <figure> with the chart and its legend; a sentence instead if there is no data.
std::string ChartFigure(const Chart& chart);

// The cumulative distribution in percent, at about `count` points; the last percent has as many
// points as the rest.
std::vector<std::pair<double, double>> CumulativePoints(std::vector<double> values);

// About `count` round numbers that cover [low, high], spaced 1, 2 or 5 times a power of ten.
std::vector<double> Ticks(double low, double high, int count);

std::string EscapeHtml(std::string_view text);

}  // namespace aisp::loadgen
