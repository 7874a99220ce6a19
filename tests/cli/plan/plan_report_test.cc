#include "cli/plan/plan_report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/str_split.h"
#include "cli/plan/plan_html.h"
#include "cli/plan/svg_plot.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

PlanSettings Settings(const std::string& outputs) {
  PlanFlags flags;
  flags.model = "llama-2-7b";
  flags.gpu = "t4";
  flags.gpu_kv_tokens = 864;
  flags.prompt_lens = "100";
  flags.output_lens = outputs;
  flags.requests = 8;
  flags.html = "x.html";
  auto settings = ResolvePlanFlags(flags);
  EXPECT_TRUE(settings.ok()) << settings.status();
  return *std::move(settings);
}

TEST(PlanReport, JsonHasThePublishedFields) {
  const PlanSettings settings = Settings("10");
  const auto outcomes = RunPoints(settings, PointsOf(settings));
  ASSERT_TRUE(outcomes.ok()) << outcomes.status();
  const auto line = nlohmann::json::parse(PlanJson(settings, outcomes->back()));
  EXPECT_EQ(line["offload"], "auto");
  EXPECT_EQ(line["completed"], 8);
  EXPECT_EQ(line["output_tokens"], 80);
  const double seconds = line["duration_s"];
  EXPECT_NEAR(line["output_tokens_per_s"].get<double>(), 80 / seconds, 0.01);
  EXPECT_NEAR(line["requests_per_s"].get<double>(), 8 / seconds, 0.01);
  double shares = 0;
  for (const char* mode : {"gpu_only", "unified", "asymmetric"}) {
    shares += line["step_share"][mode].get<double>();
  }
  EXPECT_NEAR(shares, 1, 1e-3);
  for (const char* latency : {"ttft_ms", "itl_ms", "e2e_ms", "per_token_ms"}) {
    for (const char* statistic : {"mean", "p50", "p90", "p99"}) {
      EXPECT_GT(line[latency][statistic].get<double>(), 0) << latency << " " << statistic;
    }
  }
  for (const char* busy : {"gpu_busy", "cpu_busy"}) {
    EXPECT_GE(line[busy].get<double>(), 0);
    EXPECT_LE(line[busy].get<double>(), 1);
  }
}

TEST(PlanReport, TheTableShowsGainsOverOff) {
  const PlanSettings settings = Settings("10");
  const auto outcomes = RunPoints(settings, PointsOf(settings));
  ASSERT_TRUE(outcomes.ok());
  const std::string table = PlanTable(settings, *outcomes);
  EXPECT_THAT(table, HasSubstr("1.000"));
  EXPECT_THAT(table, HasSubstr("100/10"));
  // As many columns in the rows as in the head, whose first has three words and three two.
  std::vector<size_t> columns;
  for (const absl::string_view line : absl::StrSplit(table, '\n', absl::SkipEmpty())) {
    const std::vector<absl::string_view> words = absl::StrSplit(line, ' ', absl::SkipEmpty());
    columns.push_back(words.size());
  }
  ASSERT_EQ(columns.size(), 4u);
  EXPECT_EQ(columns[1] - 5, columns[2]);
  EXPECT_EQ(columns[2], columns[3]);
  EXPECT_EQ(BaselineOf(*outcomes, outcomes->back().point), &outcomes->front());
}

TEST(PlanReport, ThePageHasItsPlotsAndNothingFromOutside) {
  const PlanSettings settings = Settings("5,10");
  const auto outcomes = RunPoints(settings, PointsOf(settings));
  ASSERT_TRUE(outcomes.ok());
  const std::string html = PlanHtml(settings, *outcomes);
  EXPECT_THAT(html, HasSubstr("Throughput against output length"));
  EXPECT_THAT(html, HasSubstr("Gain over GPU only"));
  EXPECT_THAT(html, HasSubstr("share of time by mode"));
  for (const char* outside : {"http", "src=", "href=", "@import", "url("}) {
    EXPECT_THAT(html, testing::Not(HasSubstr(outside)));
  }
}

TEST(PlanReport, AnswersSayWhatToDeploy) {
  const PlanSettings settings = Settings("10");
  DeployAnswer answer;
  EXPECT_THAT(DeployText(settings, {}, answer), HasSubstr("No CPU tier"));
  answer.is_met = true;
  answer.cpu_gb_per_s = 42;
  answer.cpu_kv_bytes = 0x1p33;
  EXPECT_THAT(DeployText(settings, {}, answer), HasSubstr("42 GB/s"));
  EXPECT_THAT(DeployText(settings, {}, answer), HasSubstr("8GiB"));
  EXPECT_EQ(nlohmann::json::parse(DeployJson(settings, {}, answer))["deploy"]["met"], true);
  answer.is_met_without_cpu = true;
  EXPECT_THAT(DeployText(settings, {}, answer), HasSubstr("alone"));
}

TEST(SvgPlot, OddPointsAndTextsAreHarmless) {
  const std::string svg =
      SvgPlot({"a<b", "x", "y", 0, true},
              {{"l&", {{1, 10}, {2, 0}, {3, std::numeric_limits<double>::infinity()}, {4, 20}}},
               {"none", {}}});
  EXPECT_THAT(svg, HasSubstr("a&lt;b"));
  EXPECT_THAT(svg, HasSubstr("l&amp;"));
  EXPECT_THAT(svg, testing::Not(HasSubstr("inf")));
  EXPECT_THAT(svg, testing::Not(HasSubstr("nan")));
  EXPECT_THAT(SvgPlot({}, {}), HasSubstr("</svg>"));
}

}  // namespace
}  // namespace tandem::cli
