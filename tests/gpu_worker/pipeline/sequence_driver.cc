#include "tests/gpu_worker/pipeline/sequence_driver.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "common/base/check.h"

namespace tandem::gpu_worker {

SequenceDriver::SequenceDriver(StepRunner* runner, uint64_t seed) : runner_(runner) {
  greedy_.temperature = 0.0f;
  std::mt19937_64 random(seed);
  free_gpu_.resize(static_cast<size_t>(runner->limits().num_gpu_blocks));
  free_cpu_.resize(static_cast<size_t>(runner->limits().num_cpu_blocks));
  for (std::vector<int32_t>* blocks : {&free_gpu_, &free_cpu_}) {
    std::iota(blocks->begin(), blocks->end(), 0);
    std::shuffle(blocks->begin(), blocks->end(), random);
  }
}

int32_t SequenceDriver::Take(std::vector<int32_t>& free) {
  TANDEM_CHECK(!free.empty());
  const int32_t block = free.back();
  free.pop_back();
  return block;
}

void SequenceDriver::Add(Sequence sequence) {
  const auto tokens = static_cast<int32_t>(sequence.prompt.size()) + sequence.num_tokens;
  const RunnerLimits& limits = runner_->limits();
  for (int32_t at = 0; at < tokens; at += limits.gpu_block_tokens) {
    sequence.gpu_blocks.push_back(Take(free_gpu_));
  }
  for (int32_t at = 0; limits.num_cpu_blocks > 0 && at < tokens; at += limits.cpu_block_tokens) {
    sequence.cpu_blocks.push_back(Take(free_cpu_));
  }
  sequences_.push_back(std::move(sequence));
}

SequenceWork SequenceDriver::WorkOf(const Sequence& sequence, size_t index, int32_t chunk) const {
  SequenceWork work;
  work.sequence_id = index;
  work.start_position = sequence.computed;
  work.block_table = sequence.on_cpu ? sequence.cpu_blocks : sequence.gpu_blocks;
  const auto prompt_tokens = static_cast<int32_t>(sequence.prompt.size());
  SampleRequest sample;
  sample.params = &greedy_;
  sample.prompt_tokens = sequence.prompt;
  sample.output_tokens = sequence.tokens;
  sample.num_logprobs = sequence.num_logprobs;
  if (sequence.computed >= prompt_tokens) {
    work.kind = sequence.on_cpu ? WorkKind::kDecodeCpu : WorkKind::kDecodeGpu;
    work.tokens = std::span(&sequence.tokens.back(), 1);
    work.sample = sample;
    return work;
  }
  work.kind = sequence.on_cpu ? WorkKind::kPrefillCpu : WorkKind::kPrefillGpu;
  const int32_t count = std::min(chunk, prompt_tokens - sequence.computed);
  const auto first = static_cast<size_t>(sequence.computed);
  work.tokens = std::span(sequence.prompt).subspan(first, static_cast<size_t>(count));
  if (sequence.computed + count == prompt_tokens) {
    work.sample = sample;
  }
  if (sequence.num_prompt_logprobs >= 0) {
    work.num_prompt_logprobs = sequence.num_prompt_logprobs;
    const size_t rows = std::min(static_cast<size_t>(count), sequence.prompt.size() - first - 1);
    work.next_tokens = std::span(sequence.prompt).subspan(first + 1, rows);
  }
  return work;
}

bool SequenceDriver::Plan(StepMode mode, int32_t chunk, StepInput* input) {
  *input = StepInput();
  input->mode = mode;
  input->epoch = NextEpoch();
  const std::vector<size_t> moves = std::exchange(moves_, {});
  for (const size_t index : moves) {
    Sequence& sequence = sequences_[index];
    input->copies.push_back(
        {!sequence.on_cpu, sequence.gpu_blocks, sequence.cpu_blocks, sequence.computed});
    sequence.on_cpu = !sequence.on_cpu;
  }
  bool any = false;
  for (size_t i = 0; i < sequences_.size(); ++i) {
    const Sequence& sequence = sequences_[i];
    if (static_cast<int32_t>(sequence.tokens.size()) == sequence.num_tokens) {
      continue;
    }
    any = true;
    if (std::find(moves.begin(), moves.end(), i) != moves.end()) {
      continue;  // it has no rows in the step that moves it
    }
    const SequenceWork work = WorkOf(sequence, i, chunk);
    if (mode == StepMode::kGpuOnly && work.kind == WorkKind::kDecodeCpu) {
      continue;
    }
    const bool second = mode == StepMode::kAsymmetric && sequence.sub_batch == 1;
    input->sub_batch[second ? 1 : 0].push_back(work);
  }
  return any;
}

void SequenceDriver::Apply(const StepInput& input, const StepOutput& output) {
  graph_steps_ += output.is_graph ? 1 : 0;
  captures_ += output.is_captured ? 1 : 0;
  for (const std::vector<SequenceWork>& works : input.sub_batch) {
    for (const SequenceWork& work : works) {
      sequences_[work.sequence_id].computed += static_cast<int32_t>(work.tokens.size());
    }
  }
  for (const SequenceOutput& result : output.sequences) {
    Sequence& sequence = sequences_[result.sequence_id];
    sequence.prompt_logprobs.insert(sequence.prompt_logprobs.end(), result.prompt_logprobs.begin(),
                                    result.prompt_logprobs.end());
    if (result.token.has_value()) {
      sequence.tokens.push_back(*result.token);
      if (result.logprobs.has_value()) {
        sequence.logprobs.push_back(*result.logprobs);
      }
    }
  }
}

absl::Status SequenceDriver::Step(StepMode mode, int32_t chunk) {
  StepInput input;
  if (!Plan(mode, chunk, &input)) {
    return absl::OutOfRangeError("all sequences are finished");
  }
  const absl::StatusOr<StepOutput> output = runner_->Run(input);
  if (!output.ok()) {
    return output.status();
  }
  Apply(input, *output);
  return absl::OkStatus();
}

absl::Status SequenceDriver::RunAll(StepMode mode, int32_t chunk) {
  absl::Status status;
  while (status.ok()) {
    status = Step(mode, chunk);
  }
  return absl::IsOutOfRange(status) ? absl::OkStatus() : status;
}

}  // namespace tandem::gpu_worker
