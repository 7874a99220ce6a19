#include "cli/bench/bench_report.h"

#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

TEST(PercentileTest, InterpolatesBetweenRanks) {
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2, 5}, 50), 3);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2, 5}, 90), 4.6);
  EXPECT_DOUBLE_EQ(Percentile({4, 1, 3, 2, 5}, 100), 5);
  EXPECT_DOUBLE_EQ(Percentile({7}, 99), 7);
  EXPECT_DOUBLE_EQ(Percentile({}, 99), 0);
}

TEST(BenchReportTest, CountsWhatSucceeded) {
  LoadOutcome outcome;
  outcome.duration_us = 2'000'000;
  RequestOutcome good;
  good.ok = true;
  good.first_token_us = 10'000;
  good.inter_token_us = {1'000, 3'000};
  good.total_us = 14'000;
  good.prompt_tokens = 5;
  good.output_tokens = 3;
  RequestOutcome bad;
  bad.error = "no";
  bad.total_us = 99'000'000;
  outcome.requests = {good, bad, good};
  const auto report = nlohmann::json::parse(ReportJson({}, outcome));
  EXPECT_EQ(report["requests"], 3);
  EXPECT_EQ(report["errors"], 1);
  EXPECT_EQ(report["requests_per_s"], 1.0);
  EXPECT_EQ(report["output_tokens_per_s"], 3.0);
  EXPECT_EQ(report["ttft_ms"]["p50"], 10.0);
  EXPECT_EQ(report["itl_ms"]["p50"], 2.0);
  EXPECT_EQ(report["e2e_ms"]["p99"], 14.0);
  EXPECT_NE(ReportTable(outcome).find("output tokens per s"), std::string::npos);
}

TEST(BenchReportTest, NothingMeasuredIsNull) {
  const auto report = nlohmann::json::parse(ReportJson({}, LoadOutcome{}));
  EXPECT_TRUE(report["ttft_ms"].is_null());
  EXPECT_EQ(report["errors"], 0);
}

}  // namespace
}  // namespace tandem::cli
