#include "cli/plan/workload.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>

#include "cli/bench/random_arrivals.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

WorkloadSource Synthetic(int64_t prompt, int64_t output, int64_t requests) {
  WorkloadSource source;
  source.prompt_tokens = prompt;
  source.output_tokens = output;
  source.requests = requests;
  return source;
}

std::string WriteTrace(const std::string& text) {
  std::string path = testing::TempDir() + "/plan_trace_XXXXXX";
  const int fd = mkstemp(path.data());
  EXPECT_GE(fd, 0);
  std::ofstream(path) << text;
  return path;
}

TEST(Workload, LengthsStayWithinTheirSpreadAndFollowTheSeed) {
  WorkloadSource source = Synthetic(1000, 100, 5000);
  source.spread = 0.1;
  const auto requests = MakeRequests(source);
  ASSERT_TRUE(requests.ok());
  double sum = 0;
  int32_t shortest = 1 << 30;
  int32_t longest = 0;
  for (const PlannedArrival& request : *requests) {
    sum += request.prompt_tokens;
    shortest = std::min(shortest, request.prompt_tokens);
    longest = std::max(longest, request.prompt_tokens);
  }
  EXPECT_NEAR(sum / 5000, 1000, 5);
  EXPECT_GE(shortest, 900);
  EXPECT_LT(shortest, 910);
  EXPECT_LE(longest, 1100);
  EXPECT_GT(longest, 1090);
  EXPECT_EQ((*MakeRequests(source))[77].output_tokens, (*requests)[77].output_tokens);
  source.seed = 1;
  EXPECT_NE((*MakeRequests(source))[77].prompt_tokens, (*requests)[77].prompt_tokens);
}

TEST(Workload, PoissonArrivalsHaveTheirRate) {
  const auto requests = MakeRequests(Synthetic(10, 10, 20'000));
  const auto timed = WithArrivals(*requests, {.rate = 4});
  EXPECT_NEAR(static_cast<double>(timed.back().arrival_us) * 1e-6, 5000, 150);
  int within_a_mean = 0;
  for (size_t i = 1; i < timed.size(); ++i) {
    ASSERT_GE(timed[i].arrival_us, timed[i - 1].arrival_us);
    within_a_mean += timed[i].arrival_us - timed[i - 1].arrival_us < 250'000 ? 1 : 0;
  }
  EXPECT_NEAR(within_a_mean / 20'000.0, 0.632, 0.015);  // 1 - 1/e
  // Those that the load generator sends for the same rate and seed.
  RandomArrivals arrivals(4, 0);
  EXPECT_EQ(timed[0].arrival_us, arrivals.NextUs());
  EXPECT_EQ(timed[1].arrival_us, arrivals.NextUs());
  // Twice the rate: the same requests in half of the time.
  const auto faster = WithArrivals(*requests, {.rate = 8});
  EXPECT_NEAR(static_cast<double>(faster.back().arrival_us),
              static_cast<double>(timed.back().arrival_us) / 2, 2);
}

TEST(Workload, TracesKeepTheirTimesUnlessToldOtherwise) {
  WorkloadSource source;
  source.trace =
      WriteTrace("TIMESTAMP,ContextTokens,GeneratedTokens\n1.0,100,10\n3.5,300,30\n2.0,200,20\n");
  const auto requests = MakeRequests(source);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 3u);
  EXPECT_EQ((*requests)[1].prompt_tokens, 200);
  EXPECT_EQ(WithArrivals(*requests, {.use_timestamps = true})[2].arrival_us, 2'500'000);
  EXPECT_EQ(WithArrivals(*requests, {})[2].arrival_us, 0);
  source.requests = 1;
  EXPECT_EQ(MakeRequests(source)->size(), 1u);
}

TEST(Workload, BadTracesNameLineAndColumn) {
  WorkloadSource source;
  source.trace = WriteTrace("prompt_tokens,output_tokens\n100,10\n,20\n");
  EXPECT_THAT(std::string(MakeRequests(source).status().message()),
              HasSubstr("line 3: column 1 (prompt_tokens)"));
  source.trace = WriteTrace("prompt_tokens,output_tokens\n100,10\n100\n");
  EXPECT_THAT(std::string(MakeRequests(source).status().message()),
              HasSubstr("line 3: column 2 (output_tokens)"));
  source.trace = WriteTrace("prompt_tokens,output_tokens\n100,-5\n");
  EXPECT_THAT(std::string(MakeRequests(source).status().message()), HasSubstr("'-5'"));
  source.trace = WriteTrace("prompt_tokens,output_tokens\n999999999,5\n");
  EXPECT_THAT(std::string(MakeRequests(source).status().message()), HasSubstr("999999999"));
  source.trace = WriteTrace("prompt_tokens\n100\n");
  EXPECT_THAT(std::string(MakeRequests(source).status().message()), HasSubstr("output_tokens"));
}

TEST(Workload, SyntheticLengthsOutOfRangeNameTheFlag) {
  EXPECT_THAT(std::string(MakeRequests(Synthetic(0, 10, 10)).status().message()),
              HasSubstr("--prompt-len is 0"));
  EXPECT_THAT(std::string(MakeRequests(Synthetic(10, -1, 10)).status().message()),
              HasSubstr("--output-len is -1"));
  EXPECT_THAT(std::string(MakeRequests(Synthetic(10, 10, 0)).status().message()),
              HasSubstr("--requests is 0"));
}

}  // namespace
}  // namespace tandem::cli
