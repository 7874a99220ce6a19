#include "tests/gpu_worker/engine/core_driver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace tandem::gpu_worker {

RunnerLimits SmallLimits(int32_t gpu_blocks, int32_t cpu_blocks) {
  RunnerLimits limits;
  limits.num_gpu_blocks = gpu_blocks;
  limits.gpu_block_tokens = 16;
  limits.num_cpu_blocks = cpu_blocks;
  limits.cpu_block_tokens = 128;
  limits.max_cpu_rows_per_slot = 64;
  limits.max_cpu_table_entries_per_slot = 4096;
  limits.max_batched_tokens = 2048;
  limits.vocab_size = 997;
  return limits;
}

MeasuredRates HostLikeRates() {
  MeasuredRates rates;
  rates.weight_bytes = 270e6;
  rates.memory_bytes_per_us = 12e3;
  rates.flops_per_us = 4e5;
  rates.attention_bytes_per_us = 6e3;
  rates.cpu_attention_bytes_per_us = 6e3;
  rates.copy_bytes_per_us = 4e3;
  rates.launch_us = 3;
  rates.kv_bytes_per_token_layer = 2 * 192 * 2;
  rates.cpu_kv_bytes_per_token_layer = 2 * 192 * 2;
  rates.flops_per_token = 270e6;
  rates.overlap = 0;
  rates.num_layers = 30;
  return rates;
}

CoreDriver::CoreDriver(const EngineOptions& options, const RunnerLimits& limits,
                       const MeasuredRates& rates)
    : options_(options),
      runner_(limits),
      core_(std::make_unique<EngineCore>(options, limits, MakeRooflineCostModel(rates))) {
  if (limits.num_cpu_blocks > 0) {
    core_->OnCpuBlocksReady(limits.num_cpu_blocks);
    CpuWorkerUp();
  }
}

GenerationRequest CoreDriver::Request(int32_t length, int32_t max_tokens, int32_t seed) const {
  GenerationRequest request;
  for (int32_t i = 0; i < length; ++i) {
    request.prompt_tokens.push_back((seed * 131 + i * 7 + 1) % runner_.limits().vocab_size);
  }
  request.max_tokens = max_tokens;
  request.ignore_eos = true;
  return request;
}

uint64_t CoreDriver::Submit(GenerationRequest request) {
  const SubmitResult result = core_->Submit(std::move(request), now_us);
  return result.outcome == SubmitOutcome::kAccepted ? result.sequence_id : 0;
}

void CoreDriver::CpuWorkerUp() {
  runner_.SetCpuWorkerUp(true);
  core_->OnCpuWorkerUp();
}

void CoreDriver::CpuWorkerDown() {
  runner_.SetCpuWorkerUp(false);
  core_->OnCpuWorkerDown(now_us);
}

void CoreDriver::TakeUpdates() {
  for (auto& [id, update] : core_->TakeUpdates()) {
    Outcome& outcome = outcomes_[id];
    EXPECT_FALSE(outcome.ended) << "an update after the last one";
    outcome.tokens.insert(outcome.tokens.end(), update.tokens.begin(), update.tokens.end());
    outcome.prompt_logprobs.insert(outcome.prompt_logprobs.end(), update.prompt_logprobs.begin(),
                                   update.prompt_logprobs.end());
    outcome.ended = update.finish != FinishReason::kNone;
    outcome.last = std::move(update);
  }
}

bool CoreDriver::Step() {
  const StepInput* input = core_->PlanStep(now_us);
  TakeUpdates();
  now_us += step_us;
  if (input == nullptr) {
    return false;
  }
  const absl::StatusOr<StepOutput> output = runner_.Run(*input);
  if (output.ok()) {
    core_->Commit(*output, now_us);
  } else {
    core_->Abort(output.status(), now_us);
  }
  const absl::Status status = core_->CheckInvariants();
  EXPECT_TRUE(status.ok()) << status;
  TakeUpdates();
  return true;
}

bool CoreDriver::RunToEnd(int most) {
  for (int i = 0; i < most && !core_->idle(); ++i) {
    Step();
  }
  EXPECT_THAT(runner_.errors(), testing::IsEmpty());
  return core_->idle();
}

std::vector<int32_t> CoreDriver::Expected(const GenerationRequest& request) const {
  std::vector<int32_t> stops = request.stop_token_ids;
  if (!request.ignore_eos) {
    stops.insert(stops.end(), options_.eos_token_ids.begin(), options_.eos_token_ids.end());
  }
  std::vector<int32_t> all = request.prompt_tokens;
  all.insert(all.end(), request.resumed_tokens.begin(), request.resumed_tokens.end());
  std::vector<int32_t> made;
  auto count = static_cast<int32_t>(request.resumed_tokens.size());
  while (count < request.max_tokens) {
    const bool may_stop = count >= request.min_tokens;
    const int32_t token = FakeStepRunner::NextToken(
        all, may_stop ? std::span<const int32_t>() : stops, runner_.limits().vocab_size);
    made.push_back(token);
    all.push_back(token);
    ++count;
    if (may_stop && std::find(stops.begin(), stops.end(), token) != stops.end()) {
      break;
    }
  }
  return made;
}

}  // namespace tandem::gpu_worker
