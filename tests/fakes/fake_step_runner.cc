#include "tests/fakes/fake_step_runner.h"

#include <algorithm>
#include <utility>

namespace tandem::gpu_worker {
namespace {

constexpr uint64_t kEmptyHash = 0x9e3779b97f4a7c15;

uint64_t Mix(uint64_t hash, int32_t token) {
  uint64_t x = hash ^ (static_cast<uint64_t>(static_cast<uint32_t>(token)) + 0x632be59bd9b4e019);
  x ^= x >> 30;
  x *= 0xbf58476d1ce4e5b9;
  x ^= x >> 27;
  x *= 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

uint64_t HashOf(std::span<const int32_t> tokens) {
  uint64_t hash = kEmptyHash;
  for (const int32_t token : tokens) {
    hash = Mix(hash, token);
  }
  return hash;
}

int32_t TokenFrom(uint64_t hash, std::span<const int32_t> forbidden, int32_t vocab_size) {
  auto token = static_cast<int32_t>(hash % static_cast<uint64_t>(vocab_size));
  while (std::find(forbidden.begin(), forbidden.end(), token) != forbidden.end()) {
    token = (token + 1) % vocab_size;
  }
  return token;
}

float LogprobFrom(uint64_t hash, int32_t next) {
  return -static_cast<float>(Mix(hash, next) % 1000) / 100.0f;
}

bool OnGpu(WorkKind kind) { return kind == WorkKind::kPrefillGpu || kind == WorkKind::kDecodeGpu; }

bool IsDecode(WorkKind kind) {
  return kind == WorkKind::kDecodeGpu || kind == WorkKind::kDecodeCpu;
}

}  // namespace

FakeStepRunner::FakeStepRunner(const RunnerLimits& limits) : limits_(limits) {
  rates_.num_layers = 2;
  gpu_.num_blocks = limits.num_gpu_blocks;
  gpu_.block_tokens = limits.gpu_block_tokens;
  cpu_.num_blocks = limits.num_cpu_blocks;
  cpu_.block_tokens = limits.cpu_block_tokens;
  for (Pool* pool : {&gpu_, &cpu_}) {
    pool->slots.resize(static_cast<size_t>(pool->num_blocks) *
                       static_cast<size_t>(pool->block_tokens));
  }
}

FakeStepRunner::Slot& FakeStepRunner::Pool::at(std::span<const int32_t> table, int64_t position) {
  const int64_t block = table[static_cast<size_t>(position / block_tokens)];
  return slots[static_cast<size_t>(block * block_tokens + position % block_tokens)];
}

int32_t FakeStepRunner::NextToken(std::span<const int32_t> tokens,
                                  std::span<const int32_t> forbidden, int32_t vocab_size) {
  return TokenFrom(HashOf(tokens), forbidden, vocab_size);
}

float FakeStepRunner::PromptLogprob(std::span<const int32_t> tokens, int32_t next) {
  return LogprobFrom(HashOf(tokens), next);
}

void FakeStepRunner::FailNext(absl::Status status) {
  const std::scoped_lock lock(mutex_);
  failures_.push_back(std::move(status));
}

std::vector<std::string> FakeStepRunner::errors() const {
  const std::scoped_lock lock(mutex_);
  return errors_;
}

void FakeStepRunner::Error(std::string message) {
  const std::scoped_lock lock(mutex_);
  if (errors_.size() < 20) {
    errors_.push_back(std::move(message));
  }
}

bool FakeStepRunner::CheckTable(const SequenceWork& work, const Pool& pool) {
  const int64_t end = work.start_position + static_cast<int64_t>(work.tokens.size());
  const int64_t wanted = (end + pool.block_tokens - 1) / pool.block_tokens;
  const auto size = static_cast<int64_t>(work.block_table.size());
  bool good = work.kind == WorkKind::kDecodeCpu ? size == wanted : size >= wanted;
  for (const int32_t block : work.block_table) {
    good = good && block >= 0 && block < pool.num_blocks;
  }
  if (!good) {
    Error("sequence " + std::to_string(work.sequence_id) + ": bad block table");
  }
  return good;
}

void FakeStepRunner::CheckSubBatch(const StepInput& input, int x) {
  int64_t cpu_rows = 0;
  int64_t cpu_entries = 0;
  for (const SequenceWork& work : input.sub_batch[x]) {
    if (work.tokens.empty() || (IsDecode(work.kind) && work.tokens.size() != 1)) {
      Error("sequence " + std::to_string(work.sequence_id) + ": wrong number of rows");
    }
    if (work.kind == WorkKind::kDecodeCpu) {
      ++cpu_rows;
      cpu_entries += static_cast<int64_t>(work.block_table.size());
    }
  }
  if (cpu_rows > 0 && input.mode == StepMode::kGpuOnly) {
    Error("CPU decodes in a GPU only step");
  }
  if (cpu_rows > limits_.max_cpu_rows_per_slot ||
      (limits_.max_cpu_table_entries_per_slot > 0 &&
       cpu_entries > limits_.max_cpu_table_entries_per_slot)) {
    Error("a slot's limits are exceeded");
  }
}

void FakeStepRunner::CheckStep(const StepInput& input) {
  if (input.epoch != last_epoch_ + 1 && input.epoch != 1) {  // 1: another engine
    Error("epoch " + std::to_string(input.epoch) + " after " + std::to_string(last_epoch_));
  }
  last_epoch_ = input.epoch;
  if (!input.sub_batch[1].empty() && input.mode != StepMode::kAsymmetric) {
    Error("sub-batch B outside asymmetric mode");
  }
  if (input.sub_batch[0].empty() && input.sub_batch[1].empty() && input.copies.empty()) {
    Error("a step without anything to do");
  }
  int64_t rows = 0;
  absl::flat_hash_set<uint64_t> seen;
  absl::flat_hash_set<int32_t> blocks[2];
  for (int x = 0; x < 2; ++x) {
    CheckSubBatch(input, x);
    for (const SequenceWork& work : input.sub_batch[x]) {
      rows += static_cast<int64_t>(work.tokens.size());
      if (!seen.insert(work.sequence_id).second) {
        Error("sequence " + std::to_string(work.sequence_id) + " is in the step twice");
      }
      for (const int32_t block : work.block_table) {
        if (!blocks[OnGpu(work.kind) ? 0 : 1].insert(block).second) {
          Error("block " + std::to_string(block) + " belongs to two sequences");
        }
      }
    }
  }
  for (const PoolCopy& copy : input.copies) {
    for (const int32_t block : copy.gpu_blocks) {
      if (blocks[0].contains(block)) {
        Error("device block " + std::to_string(block) + " moves and is used in the same step");
      }
    }
    for (const int32_t block : copy.cpu_blocks) {
      if (blocks[1].contains(block)) {
        Error("CPU block " + std::to_string(block) + " moves and is used in the same step");
      }
    }
  }
  if (limits_.max_batched_tokens > 0 && rows > limits_.max_batched_tokens) {
    Error("step of " + std::to_string(rows) + " rows");
  }
}

void FakeStepRunner::RunCopy(const PoolCopy& copy) {
  Pool& from = copy.to_cpu ? gpu_ : cpu_;
  Pool& to = copy.to_cpu ? cpu_ : gpu_;
  const auto from_table = copy.to_cpu ? copy.gpu_blocks : copy.cpu_blocks;
  const auto to_table = copy.to_cpu ? copy.cpu_blocks : copy.gpu_blocks;
  if (static_cast<int64_t>(from_table.size()) * from.block_tokens < copy.num_tokens ||
      static_cast<int64_t>(to_table.size()) * to.block_tokens < copy.num_tokens ||
      copy.num_tokens <= 0) {
    Error("a copy's tables do not cover its tokens");
    return;
  }
  for (int64_t position = 0; position < copy.num_tokens; ++position) {
    to.at(to_table, position) = from.at(from_table, position);
  }
}

// The next allowed token at or behind the one that the fake model wants.
void FakeStepRunner::Constrain(const SampleRequest& sample, SequenceOutput* out) const {
  sample.constraint->Begin(sample.output_tokens);
  const auto allowed = sample.constraint->Wait();
  if (!allowed.ok()) {
    out->status = allowed.status();
    out->token.reset();
    return;
  }
  for (int32_t i = 0; i < limits_.vocab_size; ++i) {
    const int32_t token = (*out->token + i) % limits_.vocab_size;
    if (((*allowed)[static_cast<size_t>(token) / 32] >> (token % 32) & 1u) != 0) {
      out->token = token;
      return;
    }
  }
}

void FakeStepRunner::RunWork(const SequenceWork& work, StepOutput* output) {
  Pool& pool = OnGpu(work.kind) ? gpu_ : cpu_;
  if (!CheckTable(work, pool)) {
    return;
  }
  uint64_t hash = kEmptyHash;
  for (int64_t position = 0; position < work.start_position; ++position) {
    const Slot& slot = pool.at(work.block_table, position);
    hash = Mix(hash, slot.token);
    if (slot.hash != hash) {
      Error("sequence " + std::to_string(work.sequence_id) + ": foreign KV at position " +
            std::to_string(position));
      return;
    }
  }
  SequenceOutput out;
  out.sequence_id = work.sequence_id;
  for (size_t row = 0; row < work.tokens.size(); ++row) {
    hash = Mix(hash, work.tokens[row]);
    pool.at(work.block_table, work.start_position + static_cast<int64_t>(row)) = {work.tokens[row],
                                                                                  hash};
    if (work.num_prompt_logprobs >= 0 && row < work.next_tokens.size()) {
      TokenLogprobs logprobs;
      logprobs.chosen = {work.next_tokens[row], LogprobFrom(hash, work.next_tokens[row]), 1};
      out.prompt_logprobs.push_back(logprobs);
    }
  }
  if (work.sample.has_value()) {
    std::vector<int32_t> all(work.sample->prompt_tokens.begin(), work.sample->prompt_tokens.end());
    all.insert(all.end(), work.sample->output_tokens.begin(), work.sample->output_tokens.end());
    if (HashOf(all) != hash) {
      Error("sequence " + std::to_string(work.sequence_id) + ": its cache is not its history");
    }
    out.token = TokenFrom(hash, work.sample->forbidden_tokens, limits_.vocab_size);
    if (work.sample->constraint != nullptr) {
      Constrain(*work.sample, &out);
    }
    if (work.sample->num_logprobs >= 0 && out.token.has_value()) {
      out.logprobs = TokenLogprobs{{*out.token, LogprobFrom(hash, *out.token), 1}, {}};
    }
  }
  if (out.token.has_value() || !out.status.ok() || !out.prompt_logprobs.empty()) {
    output->sequences.push_back(std::move(out));
  }
}

// A step that stops in the middle: copies are done, half of the rows are.
void FakeStepRunner::DoPart(const StepInput& input) {
  StepOutput lost;
  for (const PoolCopy& copy : input.copies) {
    RunCopy(copy);
  }
  for (int x = 0; x < 2; ++x) {
    for (size_t i = 0; i < input.sub_batch[x].size(); i += 2) {
      RunWork(input.sub_batch[x][i], &lost);
    }
  }
}

absl::StatusOr<StepOutput> FakeStepRunner::Run(const StepInput& input) {
  if (before_run_) {
    before_run_(input);
  }
  CheckStep(input);
  bool uses_cpu = !input.copies.empty();
  for (const auto& sub_batch : input.sub_batch) {
    for (const SequenceWork& work : sub_batch) {
      uses_cpu = uses_cpu || !OnGpu(work.kind);
    }
  }
  absl::Status failure;
  if (uses_cpu && !cpu_worker_up_) {
    failure = absl::UnavailableError("the CPU attention worker is gone");
  }
  {
    const std::scoped_lock lock(mutex_);
    if (!failures_.empty()) {
      failure = failures_.front();
      failures_.erase(failures_.begin());
    }
  }
  if (!failure.ok()) {
    DoPart(input);
    return failure;
  }
  StepOutput output;
  for (const PoolCopy& copy : input.copies) {
    RunCopy(copy);
  }
  for (const auto& sub_batch : input.sub_batch) {
    for (const SequenceWork& work : sub_batch) {
      RunWork(work, &output);
    }
  }
  if (timer_) {
    output.timings = timer_(input);
  }
  ++steps_done_;
  return output;
}

}  // namespace tandem::gpu_worker
