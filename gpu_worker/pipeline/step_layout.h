#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/statusor.h"
#include "common/exchange/device_side.h"
#include "gpu_worker/model/decoder.h"
#include "gpu_worker/ops/attention.h"
#include "gpu_worker/pipeline/stage_program.h"
#include "gpu_worker/pipeline/step_io.h"

// A step's work as rows of the activations. Pure.
namespace tandem::gpu_worker {

// A prefill chunk whose KV ends in CPU blocks; it attends within the staging area. Chunks that have
// a part of the area of their own leave it beside later stages; one for which there is no room
// takes the area first and leaves it before the others come.
struct CpuPrefill {
  ops::RowRun run;                      // block_table: of the staging area
  std::span<const int32_t> cpu_blocks;  // of the sequence
  bool moves_later = false;             // by kMoveOut; else within kAttend
};

struct SubBatchLayout {
  model::RowRange rows;
  std::vector<int32_t> tokens;     // [rows.count]
  std::vector<int32_t> positions;  // [rows.count]
  std::vector<ops::RowRun> store;  // prefill and decode: rows whose KV goes to device blocks
  std::vector<ops::RowRun> prefill;
  std::vector<ops::RowRun> decode;
  std::vector<CpuPrefill> cpu_prefill;
  std::vector<int32_t> cpu_rows;            // row ids, in slot order
  std::vector<exchange::SlotRow> cpu_slot;  // of them
};

// A row whose logits are wanted.
struct LogitRow {
  int32_t row = 0;
  int32_t output = 0;                  // index of its sequence in the step's output
  const SequenceWork* work = nullptr;  // in the StepInput
  int32_t prompt_index = -1;  // >= 0: the logprob of next_tokens[prompt_index]; else sample
};

struct StepLayout {
  SubBatchLayout sub_batch[2];
  std::vector<LogitRow> logit_rows;
  std::vector<const SequenceWork*> outputs;  // the sequence of each output
  int32_t max_position = 0;                  // largest + 1
  ProgramShape program;
};

// What a step may use.
struct LayoutLimits {
  int32_t num_layers = 0;
  int32_t max_rows = 0;
  int32_t max_positions = 0;
  int32_t vocab_size = 0;
  int32_t max_cpu_rows = 0;
  int32_t num_gpu_blocks = 0;
  int32_t gpu_block_tokens = 16;
  int32_t num_cpu_blocks = 0;
  int32_t cpu_block_tokens = 128;
  std::span<const int32_t> staging_table;  // of the staging area, in gpu_block_tokens
};

// Internal, with what is wrong, for a step that can never work: ids, tables or sizes out of range.
// Spans of the layout point into `input` and `limits`.
absl::StatusOr<StepLayout> BuildStepLayout(const StepInput& input, const LayoutLimits& limits);

}  // namespace tandem::gpu_worker
