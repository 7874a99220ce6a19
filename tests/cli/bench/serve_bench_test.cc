#include "cli/bench/serve_bench.h"

#include "cli/bench/bench_command.h"
#include "cli/bench/random_arrivals.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace tandem::cli {
namespace {

using testing::HasSubstr;

ServeBenchFlags Uniform() {
  ServeBenchFlags flags;
  flags.prompt_len = 10;
  flags.output_len = 20;
  flags.requests = 1000;
  return flags;
}

TEST(PlanRequestsTest, PoissonArrivalsHaveTheWantedRate) {
  ServeBenchFlags flags = Uniform();
  flags.rate = 50;
  const auto requests = PlanRequests(flags);
  ASSERT_TRUE(requests.ok()) << requests.status();
  ASSERT_EQ(requests->size(), 1000u);
  // Those that the planner simulates for the same rate and seed.
  RandomArrivals arrivals(50, 0);
  EXPECT_EQ((*requests)[0].arrival_us, arrivals.NextUs());
  EXPECT_EQ((*requests)[1].arrival_us, arrivals.NextUs());
  EXPECT_EQ((*requests)[7].prompt_tokens, 10);
  EXPECT_EQ((*requests)[7].output_tokens, 20);
  // 999 gaps of 20 ms on average: 20 s, deviation 0.63 s.
  EXPECT_NEAR(static_cast<double>(requests->back().arrival_us), 20e6, 3e6);
  for (size_t i = 1; i < requests->size(); ++i) {
    EXPECT_GE((*requests)[i].arrival_us, (*requests)[i - 1].arrival_us);
  }
}

TEST(PlanRequestsTest, MissingAndContradictingFlagsAreNamed) {
  ServeBenchFlags flags = Uniform();
  EXPECT_THAT(std::string(PlanRequests(flags).status().message()),
              HasSubstr("--concurrency or --rate is missing"));
  flags.concurrency = 2;
  EXPECT_TRUE(PlanRequests(flags).ok());
  flags.rate = 1;
  EXPECT_THAT(std::string(PlanRequests(flags).status().message()), HasSubstr("exclude"));
  flags.rate = 0;
  flags.output_len.reset();
  EXPECT_THAT(std::string(PlanRequests(flags).status().message()),
              HasSubstr("--output-len is missing"));
  flags.trace = "x.csv";
  EXPECT_THAT(std::string(PlanRequests(flags).status().message()), HasSubstr("--trace gives"));
}

TEST(ClipToContextTest, ShortensWhatDoesNotFit) {
  std::vector<PlannedRequest> requests = {{0, 50, 50}, {0, 80, 50}, {0, 10, 500}};
  EXPECT_EQ(ClipToContext(100, &requests), 2);
  EXPECT_EQ(requests[0].prompt_tokens, 50);
  EXPECT_EQ(requests[1].prompt_tokens, 50);
  EXPECT_EQ(requests[1].output_tokens, 50);
  EXPECT_EQ(requests[2].prompt_tokens, 1);
  EXPECT_EQ(requests[2].output_tokens, 99);
  EXPECT_EQ(ClipToContext(0, &requests), 0);
}

TEST(ServerUrlTest, TakesHostsWithAndWithoutPort) {
  const auto plain = ParseServerUrl("http://localhost:8000/");
  ASSERT_TRUE(plain.ok());
  EXPECT_EQ(plain->host, "localhost");
  EXPECT_EQ(plain->port, "8000");
  EXPECT_EQ(ParseServerUrl("http://host")->port, "80");
  EXPECT_EQ(ParseServerUrl("http://[::1]:81")->host, "::1");
  for (const char* bad : {"https://x", "x:80", "http://", "http://x:", "http://x:abc",
                          "http://x:123456", "http://x/path"}) {
    EXPECT_FALSE(ParseServerUrl(bad).ok()) << bad;
  }
}

TEST(RunBenchTest, UnknownSubcommandsAndFlagsAreErrors) {
  EXPECT_EQ(RunBench({}), 2);
  EXPECT_EQ(RunBench({"nonsense"}), 2);
  EXPECT_EQ(RunBench({"serve", "--nonsense"}), 2);
  EXPECT_EQ(RunBench({"serve", "--requests", "0"}), 2);
  EXPECT_EQ(RunBench({"serve", "--url", "ftp://x"}), 2);
  EXPECT_EQ(RunBench({"serve"}), 2);
  EXPECT_EQ(RunBench({"--help"}), 0);
  RegisterBench({"extra", "for the test", [](const std::vector<std::string>& args) {
                   return static_cast<int>(args.size()) + 40;
                 }});
  EXPECT_EQ(RunBench({"extra", "a", "b"}), 42);
}

}  // namespace
}  // namespace tandem::cli
