// Line and dot charts as inline SVG, coloured by the page's style sheet (classes s0 to s5, axis,
// grid, mark), so that they follow light and dark. Pure.
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
  bool dots = false;  // no line between them
};

struct Chart {
  std::string title = {};
  std::string x_label = {}, y_label = {};
  bool log_x = false;
  double y_max = 0;  // 0: by the values
  std::vector<Series> series = {};
  std::vector<std::pair<double, std::string>> x_marks = {};  // dashed lines with a label: limits
};

// A <figure> with the chart and its legend; with nothing to show, a sentence that says so.
std::string ChartFigure(const Chart& chart);

// Values at about `count` shares of the sorted ones: the cumulative distribution in percent, its
// last hundredth as fine as the rest.
std::vector<std::pair<double, double>> CumulativePoints(std::vector<double> values);

// Round numbers that cover [low, high]: 1, 2 or 5 times a power of ten apart, about `count` of
// them.
std::vector<double> Ticks(double low, double high, int count);

std::string EscapeHtml(std::string_view text);

}  // namespace aisp::loadgen
