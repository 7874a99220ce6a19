#include "gpu_worker/pipeline/stage_times.h"

#include <string>

#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

// A unified step of one layer whose attention is decodes alone.
std::vector<Stage> UnifiedLayer() {
  ProgramShape shape;
  shape.mode = StepMode::kUnified;
  shape.num_layers = 1;
  shape.has_rows[0] = true;
  shape.has_cpu_rows[0] = true;
  return BuildStageProgram(shape);
}

std::vector<StageTimes> Times(const std::vector<Stage>& stages) {
  std::vector<StageTimes> times(stages.size());
  for (size_t i = 0; i < stages.size(); ++i) {
    switch (stages[i].kind) {
      case StageKind::kEmbed:
        times[i] = {100, 0, 110};
        break;
      case StageKind::kPre:
        times[i] = {110, 0, 150};
        break;
      case StageKind::kSend:
        times[i] = {150, 0, 170};
        break;
      case StageKind::kAttend:
        times[i] = {150, 160, 200};
        break;
      case StageKind::kJoin:
        times[i] = {170, 0, 500};
        break;
      case StageKind::kPost:
        times[i] = {500, 0, 600};
        break;
      case StageKind::kSample:
        times[i] = {600, 0, 650};
        break;
      default:
        ADD_FAILURE() << "unexpected stage";
    }
  }
  return times;
}

TEST(StageTimesTest, WithStreamsOfTheirOwnWaitingIsIdleTimeOfTheDevice) {
  const std::vector<Stage> stages = UnifiedLayer();
  const StepTimings sum = SumStageTimes(stages, Times(stages), false);
  EXPECT_DOUBLE_EQ(sum.linear_us, 10 + 40 + 100 + 50);
  EXPECT_DOUBLE_EQ(sum.prefill_us, 10);
  EXPECT_DOUBLE_EQ(sum.gpu_decode_us, 40);
  EXPECT_DOUBLE_EQ(sum.cpu_decode_us, 300);  // from 200, where the device has nothing more to do
  EXPECT_DOUBLE_EQ(sum.copies_us, 0);
}

TEST(StageTimesTest, OnOneStreamWaitingIsTheJoin) {
  const std::vector<Stage> stages = UnifiedLayer();
  EXPECT_DOUBLE_EQ(SumStageTimes(stages, Times(stages), true).cpu_decode_us, 330);
}

TEST(StageTimesTest, CopiesCountApart) {
  ProgramShape shape;
  shape.num_layers = 0;
  shape.has_copies = true;
  const std::vector<Stage> stages = BuildStageProgram(shape);
  ASSERT_EQ(stages.size(), 1u);
  EXPECT_DOUBLE_EQ(SumStageTimes(stages, {{5, 0, 25}}, false).copies_us, 20);
}

TEST(StageTimesTest, SpansNameTrackSubBatchAndLayer) {
  const std::vector<Stage> stages = UnifiedLayer();
  std::vector<StageTimes> times = Times(stages);
  const std::vector<TraceSpan> spans = SpansOf(stages, times);
  ASSERT_EQ(spans.size(), stages.size() + 1);  // attend is two
  EXPECT_STREQ(spans[1].name, "pre");
  EXPECT_EQ(spans[1].layer, 0);
  EXPECT_EQ(spans[1].sub_batch, 0);
  for (const TraceSpan& span : spans) {
    const bool on_link = std::string(span.name) == "send" || std::string(span.name) == "join";
    EXPECT_EQ(span.track, on_link ? TraceTrack::kLink : TraceTrack::kDevice) << span.name;
  }
  EXPECT_EQ(spans.back().sub_batch, -1);
  for (StageTimes& time : times) {
    time.split_us = time.begin_us;  // no prefill
  }
  EXPECT_EQ(SpansOf(stages, times).size(), stages.size());
}

}  // namespace
}  // namespace tandem::gpu_worker
