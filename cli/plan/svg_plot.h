#pragma once

#include <string>
#include <utility>
#include <vector>

namespace tandem::cli {

// One line of a plot: points by rising x.
struct PlotLine {
  std::string label;
  std::vector<std::pair<double, double>> points;
};

struct PlotSpec {
  std::string title;
  std::string x_label;
  std::string y_label;
  double y_max = 0;  // 0: by the points
  bool log_y = false;
  bool stacked = false;  // areas on top of each other instead of lines
};

// An SVG element with axes, lines and legend; refers to nothing outside itself. Points that are not
// finite (or not positive on a logarithmic axis) are left out.
std::string SvgPlot(const PlotSpec& spec, std::vector<PlotLine> lines);

// Text made safe inside HTML and SVG.
std::string HtmlText(const std::string& text);

}  // namespace tandem::cli
