#include "cli/plan/svg_plot.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/str_replace.h"

namespace tandem::cli {
namespace {

constexpr double kWidth = 720;
constexpr double kHeight = 340;
constexpr double kLeft = 70;
constexpr double kRight = 130;
constexpr double kTop = 36;
constexpr double kBottom = 48;
constexpr int kTicks = 5;
// Distinct for colour-blind readers too (Okabe and Ito).
constexpr const char* kColours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                    "#e69f00", "#56b4e9", "#000000"};

const char* Colour(size_t i) { return kColours[i % std::size(kColours)]; }

// A step of 1, 2 or 5 times a power of ten that gives about kTicks ticks.
double TickStep(double span) {
  const double rough = span / kTicks;
  const double power = std::pow(10.0, std::floor(std::log10(rough)));
  const double digit = rough / power;
  return power * (digit < 1.5 ? 1 : digit < 3.5 ? 2 : digit < 7.5 ? 5 : 10);
}

class Plot {
 public:
  Plot(const PlotSpec& spec, std::vector<PlotLine> lines) : spec_(spec), lines_(std::move(lines)) {
    if (spec_.stacked) {
      Stack();
    }
    Clean();
    FindRange();
  }

  std::string Draw() {
    absl::StrAppendFormat(&svg_,
                          "<svg viewBox=\"0 0 %g %g\" width=\"%g\" height=\"%g\" "
                          "font-family=\"sans-serif\" font-size=\"12\">\n",
                          kWidth, kHeight, kWidth, kHeight);
    Text(kWidth / 2, 18, "middle", spec_.title);
    Axes();
    // Stacked areas from the highest down, so that lower ones stay visible.
    for (size_t k = 0; k < lines_.size(); ++k) {
      const size_t i = spec_.stacked ? lines_.size() - 1 - k : k;
      spec_.stacked ? Area(i) : Line(i);
      const double y = kTop + 16 * static_cast<double>(i);
      absl::StrAppendFormat(&svg_,
                            "<rect x=\"%g\" y=\"%g\" width=\"10\" height=\"10\" fill=\"%s\"/>\n",
                            kWidth - kRight + 12, y, Colour(i));
      Text(kWidth - kRight + 27, y + 10, "start", lines_[i].label);
    }
    return svg_ + "</svg>\n";
  }

 private:
  void Stack() {
    for (size_t i = 1; i < lines_.size(); ++i) {
      for (size_t k = 0; k < lines_[i].points.size() && k < lines_[i - 1].points.size(); ++k) {
        lines_[i].points[k].second += lines_[i - 1].points[k].second;
      }
    }
  }

  void Clean() {
    for (PlotLine& line : lines_) {
      std::erase_if(line.points, [this](const auto& point) {
        return !std::isfinite(point.first) || !std::isfinite(point.second) ||
               (spec_.log_y && !(point.second > 0));
      });
    }
  }

  void FindRange() {
    bool any = false;
    for (const PlotLine& line : lines_) {
      for (const auto& [x, y] : line.points) {
        x_min_ = any ? std::min(x_min_, x) : x;
        x_max_ = any ? std::max(x_max_, x) : x;
        y_min_ = any ? std::min(y_min_, y) : y;
        y_max_ = any ? std::max(y_max_, y) : y;
        any = true;
      }
    }
    y_min_ = spec_.log_y ? std::pow(10.0, std::floor(std::log10(std::max(y_min_, 1e-12))))
                         : std::min(y_min_, 0.0);
    y_max_ = spec_.y_max > 0 ? spec_.y_max : y_max_ * 1.05;
    x_max_ = x_max_ > x_min_ ? x_max_ : x_min_ + 1;
    y_max_ = y_max_ > y_min_ ? y_max_ : y_min_ + 1;
  }

  double X(double x) const {
    return kLeft + (x - x_min_) / (x_max_ - x_min_) * (kWidth - kLeft - kRight);
  }
  double Y(double y) const {
    const double part = spec_.log_y ? std::log(y / y_min_) / std::log(y_max_ / y_min_)
                                    : (y - y_min_) / (y_max_ - y_min_);
    return kHeight - kBottom - std::clamp(part, 0.0, 1.0) * (kHeight - kTop - kBottom);
  }

  void Text(double x, double y, const char* anchor, const std::string& text) {
    absl::StrAppendFormat(&svg_, "<text x=\"%g\" y=\"%g\" text-anchor=\"%s\">%s</text>\n", x, y,
                          anchor, HtmlText(text));
  }

  void Rule(double x1, double y1, double x2, double y2) {
    absl::StrAppendFormat(
        &svg_, "<line x1=\"%g\" y1=\"%g\" x2=\"%g\" y2=\"%g\" stroke=\"#ddd\"/>\n", x1, y1, x2, y2);
  }

  void Axes() {
    const double step = TickStep(x_max_ - x_min_);
    for (double k = std::ceil(x_min_ / step); k * step <= x_max_ * (1 + 1e-9); ++k) {
      const double x = k * step + 0.0;  // no -0
      Rule(X(x), kTop, X(x), kHeight - kBottom);
      Text(X(x), kHeight - kBottom + 16, "middle", absl::StrFormat("%g", x));
    }
    const auto y_tick = [this](double y) {
      Rule(kLeft, Y(y), kWidth - kRight, Y(y));
      Text(kLeft - 6, Y(y) + 4, "end", absl::StrFormat("%g", y));
    };
    if (spec_.log_y) {
      const int decades = static_cast<int>(std::floor(std::log10(y_max_ / y_min_) + 1e-9));
      for (int i = 0; i <= decades; ++i) {
        y_tick(y_min_ * std::pow(10.0, i));
      }
    } else {
      const double y_step = TickStep(y_max_ - y_min_);
      for (double k = std::ceil(y_min_ / y_step); k * y_step <= y_max_ * (1 + 1e-9); ++k) {
        y_tick(k * y_step + 0.0);
      }
    }
    Text((kLeft + kWidth - kRight) / 2, kHeight - 10, "middle", spec_.x_label);
    absl::StrAppendFormat(&svg_,
                          "<text transform=\"translate(14,%g) rotate(-90)\" "
                          "text-anchor=\"middle\">%s</text>\n",
                          (kTop + kHeight - kBottom) / 2, HtmlText(spec_.y_label));
  }

  std::string Path(const PlotLine& line) const {
    std::string path;
    for (const auto& [x, y] : line.points) {
      absl::StrAppendFormat(&path, "%s%.1f,%.1f", path.empty() ? "M" : " L", X(x), Y(y));
    }
    return path;
  }

  void Line(size_t i) {
    absl::StrAppendFormat(&svg_,
                          "<path d=\"%s\" fill=\"none\" stroke=\"%s\" stroke-width=\"2\"/>\n",
                          Path(lines_[i]), Colour(i));
    for (const auto& [x, y] : lines_[i].points) {
      absl::StrAppendFormat(&svg_,
                            "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>%s: %g, "
                            "%.4g</title></circle>\n",
                            X(x), Y(y), Colour(i), HtmlText(lines_[i].label), x, y);
    }
  }

  void Area(size_t i) {
    if (lines_[i].points.empty()) {
      return;
    }
    absl::StrAppendFormat(&svg_, "<path d=\"%s L%.1f,%.1f L%.1f,%.1f Z\" fill=\"%s\"/>\n",
                          Path(lines_[i]), X(lines_[i].points.back().first), Y(y_min_),
                          X(lines_[i].points.front().first), Y(y_min_), Colour(i));
  }

  const PlotSpec spec_;
  std::vector<PlotLine> lines_;
  std::string svg_;
  double x_min_ = 0, x_max_ = 1, y_min_ = 0, y_max_ = 1;
};

}  // namespace

std::string HtmlText(const std::string& text) {
  return absl::StrReplaceAll(text,
                             {{"&", "&amp;"}, {"<", "&lt;"}, {">", "&gt;"}, {"\"", "&quot;"}});
}

std::string SvgPlot(const PlotSpec& spec, std::vector<PlotLine> lines) {
  return Plot(spec, std::move(lines)).Draw();
}

}  // namespace tandem::cli
