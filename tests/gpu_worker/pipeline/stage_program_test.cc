#include "gpu_worker/pipeline/stage_program.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker {
namespace {

std::string Text(const Stage& stage) {
  const char* const names[] = {"copies",  "embed", "pre",  "send",  "attend",
                               "moveout", "join",  "post", "sample"};
  return absl::StrCat(names[static_cast<int>(stage.kind)], stage.sub_batch == 0 ? "A" : "B",
                      stage.layer);
}

std::string Text(const std::vector<Stage>& stages) {
  std::vector<std::string> words;
  for (const Stage& stage : stages) {
    words.push_back(Text(stage));
  }
  return absl::StrJoin(words, " ");
}

ProgramShape Shape(StepMode mode, int32_t layers) {
  ProgramShape shape;
  shape.mode = mode;
  shape.num_layers = layers;
  shape.has_rows[0] = true;
  return shape;
}

TEST(StageProgramTest, GpuOnly) {
  EXPECT_EQ(Text(BuildStageProgram(Shape(StepMode::kGpuOnly, 2))),
            "embedA0 preA0 attendA0 postA0 preA1 attendA1 postA1 sampleA1");
}

TEST(StageProgramTest, GpuOnlyNeverTalksToTheCpu) {
  ProgramShape shape = Shape(StepMode::kGpuOnly, 1);
  shape.has_cpu_rows[0] = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)), "embedA0 preA0 attendA0 postA0 sampleA0");
}

TEST(StageProgramTest, UnifiedWithCopies) {
  ProgramShape shape = Shape(StepMode::kUnified, 2);
  shape.has_cpu_rows[0] = true;
  shape.has_copies = true;
  const std::vector<Stage> stages = BuildStageProgram(shape);
  EXPECT_EQ(Text(stages),
            "copiesA0 embedA0 preA0 sendA0 attendA0 joinA0 postA0 preA1 sendA1 attendA1 joinA1 "
            "postA1 sampleA1");
  EXPECT_EQ(stages[0].resource,
            StageResource::kSwapper);  // nothing waits for it but the step's end
  EXPECT_TRUE(stages[2].depends_on.empty());
  EXPECT_EQ(stages[3].depends_on, std::vector<int32_t>{2});
  EXPECT_TRUE(stages[4].depends_on.empty());
  EXPECT_EQ(stages[6].depends_on, std::vector<int32_t>{5});
  EXPECT_TRUE(stages[7].depends_on.empty());
}

TEST(StageProgramTest, AsymmetricOrderOfTheDesign) {
  ProgramShape shape = Shape(StepMode::kAsymmetric, 3);
  shape.has_rows[1] = shape.has_cpu_rows[0] = shape.has_cpu_rows[1] = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)),
            "embedA0 preA0 sendA0 embedB0 preB0 sendB0 attendA0 joinA0 "
            "postA0 preA1 sendA1 attendB0 joinB0 postB0 preB1 sendB1 attendA1 joinA1 "
            "postA1 preA2 sendA2 attendB1 joinB1 postB1 preB2 sendB2 attendA2 joinA2 "
            "postA2 attendB2 joinB2 postB2 sampleA2");
}

// The send of a sub-batch comes after the join of the other one.
TEST(StageProgramTest, PublishedOrder) {
  ProgramShape shape = Shape(StepMode::kAsymmetric, 3);
  shape.order = StageOrder::kPublished;
  shape.has_rows[1] = shape.has_cpu_rows[0] = shape.has_cpu_rows[1] = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)),
            "embedA0 preA0 sendA0 embedB0 preB0 attendA0 joinA0 sendB0 "
            "postA0 preA1 attendB0 joinB0 sendA1 postB0 preB1 attendA1 joinA1 sendB1 "
            "postA1 preA2 attendB1 joinB1 sendA2 postB1 preB2 attendA2 joinA2 sendB2 "
            "postA2 attendB2 joinB2 postB2 sampleA2");
}

TEST(StageProgramTest, PromptsMoveOutBesideTheNextDenseStages) {
  ProgramShape shape = Shape(StepMode::kUnified, 2);
  shape.has_cpu_rows[0] = shape.moves_out[0] = true;
  const std::vector<Stage> stages = BuildStageProgram(shape);
  EXPECT_EQ(Text(stages),
            "embedA0 preA0 sendA0 attendA0 moveoutA0 joinA0 postA0 preA1 sendA1 attendA1 "
            "moveoutA1 joinA1 postA1 sampleA1");
  EXPECT_EQ(stages[4].resource, StageResource::kMover);
  EXPECT_EQ(stages[4].depends_on, std::vector<int32_t>{3});
  EXPECT_EQ(stages[9].depends_on, std::vector<int32_t>{4})
      << "the staging area is in use until then";
}

// One staging area serves both: what B's prompts put there must not meet what A's still move out,
// and the other way round.
TEST(StageProgramTest, BothSubBatchesShareTheStagingArea) {
  ProgramShape shape = Shape(StepMode::kAsymmetric, 2);
  shape.has_rows[1] = shape.moves_out[0] = shape.uses_staging[0] = true;
  const auto attend_b = [&shape] {
    const std::vector<Stage> stages = BuildStageProgram(shape);
    return *std::find_if(stages.begin(), stages.end(), [](const Stage& stage) {
      return stage.kind == StageKind::kAttend && stage.sub_batch == 1;
    });
  };
  EXPECT_TRUE(attend_b().depends_on.empty());
  shape.uses_staging[1] = true;
  EXPECT_EQ(attend_b().depends_on.size(), 1u);
  shape.moves_out[1] = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)),
            "embedA0 preA0 embedB0 preB0 attendA0 moveoutA0 postA0 preA1 attendB0 moveoutB0 "
            "postB0 preB1 attendA1 moveoutA1 postA1 attendB1 moveoutB1 postB1 sampleA1");
}

TEST(StageProgramTest, AsymmetricWithOneSideEmpty) {
  ProgramShape shape = Shape(StepMode::kAsymmetric, 2);
  shape.has_rows[0] = false;
  shape.has_rows[1] = shape.has_cpu_rows[1] = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)),
            "embedB0 preB0 sendB0 attendB0 joinB0 postB0 preB1 sendB1 attendB1 joinB1 postB1 "
            "sampleA1");
}

TEST(StageProgramTest, CopiesAlone) {
  ProgramShape shape;
  shape.num_layers = 4;
  shape.has_copies = true;
  EXPECT_EQ(Text(BuildStageProgram(shape)), "copiesA0");
}

// What an executor relies on, for every shape.
TEST(StageProgramTest, DependenciesAreEarlierAndComplete) {
  for (int bits = 0; bits < 256; ++bits) {
    ProgramShape shape;
    shape.mode = bits & 1 ? StepMode::kAsymmetric : StepMode::kUnified;
    shape.num_layers = 1 + (bits >> 1 & 1) * 4;
    shape.has_copies = (bits & 4) != 0;
    shape.has_rows[0] = (bits & 8) != 0;
    shape.has_rows[1] = (bits & 16) != 0;
    shape.has_cpu_rows[0] = shape.has_cpu_rows[1] = (bits & 32) != 0;
    shape.order = bits & 64 ? StageOrder::kPublished : StageOrder::kOverlapped;
    shape.moves_out[0] = (bits & 128) != 0;
    const std::vector<Stage> stages = BuildStageProgram(shape);
    EXPECT_EQ(std::count_if(stages.begin(), stages.end(),
                            [](const Stage& stage) {
                              return stage.kind == StageKind::kCopies &&
                                     stage.resource == StageResource::kSwapper;
                            }),
              shape.has_copies ? 1 : 0);
    for (size_t i = 0; i < stages.size(); ++i) {
      for (const int32_t earlier : stages[i].depends_on) {
        ASSERT_LT(earlier, static_cast<int32_t>(i));
        ASSERT_NE(stages[static_cast<size_t>(earlier)].resource, stages[i].resource);
        ASSERT_NE(stages[static_cast<size_t>(earlier)].kind, StageKind::kCopies);
      }
      if (stages[i].kind == StageKind::kSend) {
        const Stage& pre = stages[static_cast<size_t>(stages[i].depends_on.at(0))];
        EXPECT_EQ(Text(pre),
                  absl::StrCat("pre", stages[i].sub_batch == 0 ? "A" : "B", stages[i].layer));
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker
