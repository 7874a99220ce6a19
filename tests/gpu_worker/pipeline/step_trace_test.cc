#include "gpu_worker/pipeline/step_trace.h"

#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

class StepTraceTest : public testing::Test {
 protected:
  StepTraceTest()
      : path_(testing::TempDir() + "step_trace_" + std::to_string(getpid()) + ".json") {}
  ~StepTraceTest() override { unlink(path_.c_str()); }

  std::string Text() const {
    std::ifstream file(path_);
    std::stringstream text;
    text << file.rdbuf();
    return text.str();
  }
  nlohmann::json Events() const {
    const nlohmann::json json = nlohmann::json::parse(Text(), nullptr, false);
    EXPECT_FALSE(json.is_discarded()) << Text();
    return json.value("traceEvents", nlohmann::json::array());
  }
  static StepTrace Step(uint64_t epoch) {
    StepTrace step;
    step.epoch = epoch;
    step.mode = "unified";
    step.rows[0] = 7;
    step.cpu_rows[0] = 3;
    step.begin_us = 1000.0 * static_cast<double>(epoch);
    step.end_us = step.begin_us + 900;
    step.spans.push_back(
        {"pre", TraceTrack::kDevice, 0, 4, step.begin_us + 1, step.begin_us + 101.5});
    step.spans.push_back({"sample", TraceTrack::kDevice, -1, -1, step.begin_us + 800, 0});
    return step;
  }

  const std::string path_;
};

TEST_F(StepTraceTest, TheFileIsValidAfterEveryStep) {
  auto tracer = StepTracer::Open(path_);
  ASSERT_TRUE(tracer.ok()) << tracer.status();
  const size_t tracks = Events().size();
  EXPECT_EQ(tracks, 6u);
  for (uint64_t epoch = 1; epoch <= 3; ++epoch) {
    (*tracer)->Add(Step(epoch));
    EXPECT_EQ(Events().size(), tracks + 3 * epoch);
  }
  const nlohmann::json events = Events();
  const nlohmann::json& step = events[tracks];
  EXPECT_EQ(step["name"], "unified");
  EXPECT_EQ(step["args"]["epoch"], 1);
  EXPECT_EQ(step["args"]["rows_a"], 7);
  EXPECT_EQ(step["args"]["cpu_rows_a"], 3);
  const nlohmann::json& pre = events[tracks + 1];
  EXPECT_EQ(pre["name"], "pre A");
  EXPECT_EQ(pre["ph"], "X");
  EXPECT_DOUBLE_EQ(pre["ts"], 1001.0);
  EXPECT_DOUBLE_EQ(pre["dur"], 100.5);
  EXPECT_EQ(pre["args"]["layer"], 4);
  const nlohmann::json& sample = events[tracks + 2];
  EXPECT_EQ(sample["name"], "sample");
  EXPECT_DOUBLE_EQ(sample["dur"], 0.0);  // never negative
}

TEST_F(StepTraceTest, TheFileStopsGrowingAtItsLimitAndStaysValid) {
  constexpr int64_t kLimit = 4000;
  auto tracer = StepTracer::Open(path_, kLimit);
  ASSERT_TRUE(tracer.ok()) << tracer.status();
  for (uint64_t epoch = 1; epoch <= 100; ++epoch) {
    (*tracer)->Add(Step(epoch));
  }
  EXPECT_LE(static_cast<int64_t>(Text().size()), kLimit);
  EXPECT_GT(Events().size(), 10u);
}

TEST_F(StepTraceTest, AFileThatCannotBeMadeIsNamed) {
  const auto tracer = StepTracer::Open("/nowhere/at/all.json");
  ASSERT_FALSE(tracer.ok());
  EXPECT_NE(tracer.status().message().find("/nowhere/at/all.json"), std::string::npos);
}

TEST_F(StepTraceTest, AnOldFileIsReplaced) {
  std::ofstream(path_) << std::string(100'000, 'x');
  auto tracer = StepTracer::Open(path_);
  ASSERT_TRUE(tracer.ok()) << tracer.status();
  EXPECT_EQ(Events().size(), 6u);
}

}  // namespace
}  // namespace tandem::gpu_worker
