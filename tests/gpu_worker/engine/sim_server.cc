#include "tests/gpu_worker/engine/sim_server.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::gpu_worker {

SimServer::SimServer(const EngineOptions& options, const RunnerLimits& limits,
                     std::shared_ptr<const CostModel> believed,
                     std::shared_ptr<const CostModel> truth)
    : core_(options, limits, std::move(believed)), truth_(std::move(truth)) {
  if (limits.num_cpu_blocks > 0) {
    core_.OnCpuBlocksReady(limits.num_cpu_blocks);
    SetCpuWorkerUp(true);
  }
}

void SimServer::SetCpuWorkerUp(bool up) {
  cpu_worker_up_ = up;
  up ? core_.OnCpuWorkerUp() : core_.OnCpuWorkerDown(clock());
}

uint64_t SimServer::Submit(int32_t prompt, int32_t output, int32_t priority) {
  GenerationRequest request;
  request.prompt_tokens.assign(static_cast<size_t>(prompt), 1);
  request.max_tokens = output;
  request.ignore_eos = true;
  request.priority = priority;
  const SubmitResult result = core_.Submit(std::move(request), clock());
  if (result.outcome != SubmitOutcome::kAccepted) {
    return 0;
  }
  times_[result.sequence_id].submitted_us = now_us_;
  return result.sequence_id;
}

StepOutput SimServer::Run(const StepInput& input) {
  Corrections shares;
  shares.cpu_decode = 1 / cpu_share_;
  last_truth_ = truth_.Predict(LoadOf(input), shares);
  StepOutput output;
  for (const auto& sub_batch : input.sub_batch) {
    for (const SequenceWork& work : sub_batch) {
      if (work.sample.has_value()) {
        SequenceOutput sampled;
        sampled.sequence_id = work.sequence_id;
        sampled.token = 2;
        output.sequences.push_back(std::move(sampled));
      }
    }
  }
  output.timings.total_us = last_truth_.total_us;
  output.timings.linear_us = last_truth_.linear_us;
  output.timings.prefill_us = last_truth_.prefill_us;
  output.timings.gpu_decode_us = last_truth_.gpu_decode_us;
  output.timings.cpu_decode_us = last_truth_.cpu_wait_us;
  output.timings.cpu_busy_us =
      std::max(last_truth_.cpu_decode_us - last_truth_.cpu_exchange_us, 0.0);
  output.timings.copies_us = last_truth_.copies_us + last_truth_.move_out_us;
  cpu_busy_us_ += last_truth_.cpu_decode_us;
  return output;
}

void SimServer::TakeUpdates() {
  for (auto& [id, update] : core_.TakeUpdates()) {
    Times& times = times_[id];
    if (!update.tokens.empty()) {
      if (times.tokens == 0) {
        times.first_us = now_us_;
      } else {
        times.longest_gap_us = std::max(times.longest_gap_us, now_us_ - times.last_us);
      }
      times.last_us = now_us_;
      times.tokens += static_cast<int32_t>(update.tokens.size());
      tokens_ += static_cast<int64_t>(update.tokens.size());
    }
    if (update.finish != FinishReason::kNone) {
      times.ended = true;
      ++ended_;
    }
  }
}

bool SimServer::Step() {
  const StepInput* input = core_.PlanStep(clock());
  TakeUpdates();
  if (input == nullptr) {
    return false;
  }
  const bool lost =
      !cpu_worker_up_ && (input->mode != StepMode::kGpuOnly || !input->copies.empty());
  const StepOutput output = Run(*input);
  if (lost) {
    now_us_ += 1'000;
    core_.Abort(absl::UnavailableError("the CPU worker is away"), clock());
    TakeUpdates();
    return true;
  }
  last_step_us_ = std::max(output.timings.total_us, 1.0);
  now_us_ += last_step_us_;
  core_.Commit(output, clock());
  TakeUpdates();
  return true;
}

void SimServer::RunUntil(double until_us) {
  while (now_us_ < until_us && !core_.idle()) {
    if (!Step()) {
      now_us_ += 1'000;
    }
  }
}

bool SimServer::RunToEnd(int most_steps) {
  for (int i = 0; i < most_steps && !core_.idle(); ++i) {
    if (!Step()) {
      now_us_ += 1'000;
    }
  }
  return core_.idle();
}

namespace {

MeasuredRates SevenOrEightB(double cpu_gb_per_s) {
  MeasuredRates rates;
  rates.num_layers = 32;
  rates.copy_bytes_per_us = 1.2e4;
  rates.launch_us = 5;
  rates.overlap = 1;
  rates.cpu_attention_bytes_per_us = cpu_gb_per_s * 1e3;
  return rates;
}

}  // namespace

MeasuredRates T4Rates(double cpu_gb_per_s) {
  MeasuredRates rates = SevenOrEightB(cpu_gb_per_s);
  rates.weight_bytes = 13.2e9;
  rates.flops_per_token = 13.2e9;
  rates.memory_bytes_per_us = 2.6e5;
  rates.flops_per_us = 4.5e7;
  rates.attention_bytes_per_us = 2.2e5;
  rates.kv_bytes_per_token_layer = 16384;
  rates.cpu_kv_bytes_per_token_layer = 16384;
  return rates;
}

MeasuredRates A10gRates(double cpu_gb_per_s) {
  MeasuredRates rates = SevenOrEightB(cpu_gb_per_s);
  rates.weight_bytes = 15e9;
  rates.flops_per_token = 15e9;
  rates.memory_bytes_per_us = 5e5;
  rates.flops_per_us = 8e7;
  rates.attention_bytes_per_us = 4.5e5;
  rates.kv_bytes_per_token_layer = 4096;
  rates.cpu_kv_bytes_per_token_layer = 4096;
  return rates;
}

RunnerLimits SimLimits(int64_t gpu_tokens, int64_t cpu_tokens) {
  RunnerLimits limits;
  limits.gpu_block_tokens = 16;
  limits.cpu_block_tokens = 128;
  limits.num_gpu_blocks = static_cast<int32_t>(gpu_tokens / 16);
  limits.num_cpu_blocks = static_cast<int32_t>(cpu_tokens / 128);
  limits.max_cpu_rows_per_slot = 256;
  limits.max_cpu_table_entries_per_slot = limits.num_cpu_blocks;
  limits.max_batched_tokens = 2048;
  limits.vocab_size = 32'000;
  return limits;
}

}  // namespace tandem::gpu_worker
