#include "gpu_worker/cost_model/cost_profiler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>

namespace tandem::gpu_worker {
namespace {

RunnerLimits Limits() {
  RunnerLimits limits;
  limits.num_gpu_blocks = 128;
  limits.gpu_block_tokens = 16;
  limits.num_cpu_blocks = 64;
  limits.cpu_block_tokens = 128;
  limits.max_cpu_rows_per_slot = 32;
  limits.max_cpu_table_entries_per_slot = 64;
  limits.max_batched_tokens = 512;
  limits.vocab_size = 100;
  return limits;
}

MeasuredRates Rates(double speed) {
  MeasuredRates rates;
  rates.num_layers = 8;
  rates.weight_bytes = 1e9;
  rates.memory_bytes_per_us = 1e5 * speed;
  rates.flops_per_us = 1e7 * speed;
  rates.flops_per_token = 1e9;
  rates.attention_bytes_per_us = 8e4 * speed;
  rates.cpu_attention_bytes_per_us = 2e4 * speed;
  rates.copy_bytes_per_us = 1e4 * speed;
  rates.launch_us = 4;
  rates.kv_bytes_per_token_layer = 2048;
  rates.cpu_kv_bytes_per_token_layer = 2048;
  return rates;
}

// Answers each step as a machine with these costs would.
StepOutput Answer(const Predictor& truth, const StepInput& step) {
  const StepPrediction p = truth.Predict(LoadOf(step), Corrections());
  StepOutput output;
  output.timings.total_us = p.total_us;
  output.timings.linear_us = p.linear_us;
  output.timings.prefill_us = p.prefill_us;
  output.timings.gpu_decode_us = p.gpu_decode_us;
  output.timings.cpu_decode_us = p.cpu_wait_us;
  output.timings.copies_us = p.copies_us;
  return output;
}

void CheckStep(const StepInput& step, const RunnerLimits& limits, int32_t max_len) {
  int64_t rows = 0;
  for (const auto& sub_batch : step.sub_batch) {
    int64_t cpu_rows = 0;
    for (const SequenceWork& work : sub_batch) {
      rows += static_cast<int64_t>(work.tokens.size());
      const bool on_cpu = work.kind == WorkKind::kDecodeCpu;
      cpu_rows += on_cpu ? 1 : 0;
      const int64_t end = work.start_position + static_cast<int64_t>(work.tokens.size());
      EXPECT_GE(static_cast<int64_t>(work.block_table.size()) *
                    (on_cpu ? limits.cpu_block_tokens : limits.gpu_block_tokens),
                end);
      EXPECT_LE(end, max_len);
      for (const int32_t block : work.block_table) {
        EXPECT_LT(block, on_cpu ? limits.num_cpu_blocks : limits.num_gpu_blocks);
      }
    }
    EXPECT_LE(cpu_rows, limits.max_cpu_rows_per_slot);
  }
  EXPECT_LE(rows, limits.max_batched_tokens);
}

TEST(CostProfilerTest, LearnsAMachineThatIsNotAsGuessed) {
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const std::shared_ptr<const CostModel> truth = MakeRooflineCostModel(Rates(0.4));
  const Predictor machine(truth);
  ProfilerOptions options;
  options.max_model_len = 1500;
  CostProfiler profiler(Limits(), guess, options);
  int steps = 0;
  while (StepInput* step = profiler.Next()) {
    CheckStep(*step, Limits(), 1500);
    profiler.Record(Answer(machine, *step));
    ASSERT_LT(++steps, 1000);
  }
  const CostTables tables = profiler.Tables();
  ASSERT_TRUE(ValidateCostTables(tables).ok()) << ValidateCostTables(tables);
  const auto model = MakeTableCostModel(tables, guess);
  for (const int64_t rows : {1, 7, 100, 300, 512, 2000}) {
    EXPECT_NEAR(model->LinearUs(rows) / truth->LinearUs(rows), 1, 0.05) << rows;
  }
  for (const int64_t n : {1, 5, 16, 32}) {
    EXPECT_NEAR(model->GpuDecodeUs(n, n * 200) / truth->GpuDecodeUs(n, n * 200), 1, 0.1) << n;
    EXPECT_NEAR(model->CpuDecodeUs(n, n * 200) / truth->CpuDecodeUs(n, n * 200), 1, 0.1) << n;
  }
  EXPECT_NEAR(model->PrefillUs(256, 512) / truth->PrefillUs(256, 512), 1, 0.3);
  EXPECT_NEAR(model->CopyUs(512) / truth->CopyUs(512), 1, 0.05);
  EXPECT_NEAR(model->overlap(), 1, 0.1);
}

TEST(CostProfilerTest, SeesThatBothSidesShareTheCores) {
  MeasuredRates shared = Rates(1);
  shared.overlap = 0;
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const Predictor machine(MakeRooflineCostModel(shared));
  CostProfiler profiler(Limits(), guess, ProfilerOptions());
  while (StepInput* step = profiler.Next()) {
    profiler.Record(Answer(machine, *step));
  }
  EXPECT_NEAR(profiler.Tables().overlap, 0, 0.1);
}

TEST(CostProfilerTest, LongStepsAreLeftOutAndGuessedInProportion) {
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const std::shared_ptr<const CostModel> truth = MakeRooflineCostModel(Rates(0.5));
  const Predictor machine(truth);
  ProfilerOptions options;
  options.longest_step_us = 20e3;  // 128 rows take 13 ms, 256 take 26
  CostProfiler profiler(Limits(), guess, options);
  while (StepInput* step = profiler.Next()) {
    // The first of each term is measured however long it takes.
    EXPECT_LE(Predictor(guess).Predict(LoadOf(*step), Corrections()).total_us, 25e3);
    profiler.Record(Answer(machine, *step));
  }
  const auto model = MakeTableCostModel(profiler.Tables(), guess);
  EXPECT_NEAR(model->LinearUs(512) / truth->LinearUs(512), 1, 0.1);
}

// The guess is of an idle machine: when every step takes thirty times as long, a request that comes
// must not wait for one that was taken to be just short enough.
TEST(CostProfilerTest, OnALoadedMachineStepsStayShort) {
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const std::shared_ptr<const CostModel> truth = MakeRooflineCostModel(Rates(1.0 / 30));
  const Predictor machine(truth);
  CostProfiler profiler(Limits(), guess, ProfilerOptions());
  int long_steps = 0;
  while (StepInput* step = profiler.Next()) {
    const StepOutput output = Answer(machine, *step);
    EXPECT_LT(output.timings.total_us, 1e6);
    long_steps += output.timings.total_us > ProfilerOptions().longest_step_us ? 1 : 0;
    profiler.Record(output);
  }
  EXPECT_LE(long_steps, 10) << "the first of a term, and those that show how slow it is";
  const auto model = MakeTableCostModel(profiler.Tables(), guess);
  EXPECT_NEAR(model->LinearUs(512) / truth->LinearUs(512), 1, 0.1);
}

TEST(CostProfilerTest, StopsAtItsBudgetWithWholeTables) {
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const Predictor machine(guess);
  ProfilerOptions options;
  options.budget_us = 100e3;
  CostProfiler profiler(Limits(), guess, options);
  while (StepInput* step = profiler.Next()) {
    profiler.Record(Answer(machine, *step));
  }
  EXPECT_LT(profiler.measured_us(), 400e3);
  EXPECT_TRUE(ValidateCostTables(profiler.Tables()).ok());
}

TEST(CostProfilerTest, FailuresAreRetriedThenLeftOut) {
  CostProfiler profiler(Limits(), MakeRooflineCostModel(Rates(1)), ProfilerOptions());
  int steps = 0;
  while (profiler.Next() != nullptr) {
    profiler.Fail(++steps % 7 == 0 ? absl::InternalError("broken")
                                   : absl::UnavailableError("away"));
    ASSERT_LT(steps, 2000);
  }
  EXPECT_EQ(profiler.measured_points(), 0u);
  EXPECT_TRUE(ValidateCostTables(profiler.Tables()).ok()) << "all of it guessed";
}

TEST(CostProfilerTest, TinyPoolsAndNoCpuTier) {
  RunnerLimits limits = Limits();
  limits.num_gpu_blocks = 2;
  limits.num_cpu_blocks = 0;
  limits.max_cpu_rows_per_slot = 0;
  limits.max_batched_tokens = 8;
  const std::shared_ptr<const CostModel> guess = MakeRooflineCostModel(Rates(1));
  const Predictor machine(guess);
  CostProfiler profiler(limits, guess, ProfilerOptions());
  while (StepInput* step = profiler.Next()) {
    EXPECT_FALSE(profiler.needs_cpu_worker());
    CheckStep(*step, limits, 32);
    profiler.Record(Answer(machine, *step));
  }
  EXPECT_TRUE(ValidateCostTables(profiler.Tables()).ok());
}

}  // namespace
}  // namespace tandem::gpu_worker
