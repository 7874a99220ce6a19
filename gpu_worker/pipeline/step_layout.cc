#include "gpu_worker/pipeline/step_layout.h"

#include <algorithm>
#include <utility>

#include "absl/container/flat_hash_set.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/ops/linear.h"

namespace tandem::gpu_worker {
namespace {

bool OnDevice(WorkKind kind) {
  return kind == WorkKind::kPrefillGpu || kind == WorkKind::kDecodeGpu;
}

bool IsDecode(WorkKind kind) {
  return kind == WorkKind::kDecodeGpu || kind == WorkKind::kDecodeCpu;
}

absl::Status CheckBlocks(std::span<const int32_t> table, int32_t num_blocks, int64_t needed,
                         const char* pool) {
  if (static_cast<int64_t>(table.size()) < needed) {
    return absl::InternalError(
        absl::StrCat("a ", pool, " block table has ", table.size(), " of ", needed, " entries"));
  }
  for (const int32_t block : table) {
    if (block < 0 || block >= num_blocks) {
      return absl::InternalError(absl::StrCat(pool, " block ", block, " of ", num_blocks));
    }
  }
  return absl::OkStatus();
}

int64_t BlocksFor(int64_t tokens, int32_t block_tokens) {
  return (tokens + block_tokens - 1) / block_tokens;
}

class LayoutBuilder {
 public:
  LayoutBuilder(const StepInput& input, const LayoutLimits& limits)
      : input_(input), limits_(limits) {}

  absl::StatusOr<StepLayout> Build() {
    absl::flat_hash_set<const int32_t*> moving;
    for (const PoolCopy& copy : input_.copies) {
      TANDEM_RETURN_IF_ERROR(CheckCopy(copy));
      if (!copy.cpu_blocks.empty() && !moving.insert(copy.cpu_blocks.data()).second) {
        return absl::InternalError("a sequence moves twice in one step");
      }
    }
    int32_t first_row = 0;
    int64_t total = 0;
    for (int x = 0; x < 2; ++x) {
      SubBatchLayout& to = layout_.sub_batch[x];
      to.rows.first = first_row;
      for (const SequenceWork& work : input_.sub_batch[x]) {
        TANDEM_RETURN_IF_ERROR(Check(work, x));
        Add(work, to);
      }
      total += to.rows.count;
      if (total > limits_.max_rows) {
        return absl::InternalError(
            absl::StrCat("a step of ", total, " rows; at most ", limits_.max_rows));
      }
      if (static_cast<int64_t>(to.cpu_rows.size()) > limits_.max_cpu_rows) {
        return absl::InternalError(absl::StrCat(
            to.cpu_rows.size(), " CPU rows in a sub-batch; at most ", limits_.max_cpu_rows));
      }
      first_row += static_cast<int32_t>(ops::LinearRows(to.rows.count));
    }
    layout_.program.mode = input_.mode;
    layout_.program.order = input_.order;
    layout_.program.num_layers = limits_.num_layers;
    layout_.program.has_copies = !input_.copies.empty();
    for (int x = 0; x < 2; ++x) {
      layout_.program.has_rows[x] = layout_.sub_batch[x].rows.count > 0;
      layout_.program.has_cpu_rows[x] = !layout_.sub_batch[x].cpu_rows.empty();
      layout_.program.moves_out[x] = ShareStaging(layout_.sub_batch[x].cpu_prefill);
      layout_.program.uses_staging[x] = !layout_.sub_batch[x].cpu_prefill.empty();
    }
    return std::move(layout_);
  }

 private:
  // Gives each chunk a part of the staging area while there is room; whether any got one.
  bool ShareStaging(std::vector<CpuPrefill>& prefills) {
    bool any = false;
    for (CpuPrefill& prefill : prefills) {
      const auto blocks = static_cast<size_t>(BlocksFor(
          int64_t{prefill.run.start_position} + prefill.run.num_rows, limits_.gpu_block_tokens));
      if (staging_used_ + blocks <= limits_.staging_table.size()) {
        prefill.run.block_table = limits_.staging_table.subspan(staging_used_, blocks);
        prefill.moves_later = true;
        staging_used_ += blocks;
        any = true;
      }
    }
    return any;
  }

  absl::Status CheckCopy(const PoolCopy& copy) const {
    if (limits_.num_cpu_blocks == 0 || copy.num_tokens < 0) {
      return absl::InternalError("a copy between the pools without a CPU pool or of negative size");
    }
    TANDEM_RETURN_IF_ERROR(CheckBlocks(copy.gpu_blocks, limits_.num_gpu_blocks,
                                       BlocksFor(copy.num_tokens, limits_.gpu_block_tokens),
                                       "device"));
    return CheckBlocks(copy.cpu_blocks, limits_.num_cpu_blocks,
                       BlocksFor(copy.num_tokens, limits_.cpu_block_tokens), "CPU");
  }

  absl::Status Check(const SequenceWork& work, int sub_batch) const {
    const int64_t end = int64_t{work.start_position} + static_cast<int64_t>(work.tokens.size());
    if (sub_batch == 1 && input_.mode != StepMode::kAsymmetric) {
      return absl::InternalError("rows in sub-batch B outside of the asymmetric mode");
    }
    if (work.kind == WorkKind::kDecodeCpu && input_.mode == StepMode::kGpuOnly) {
      return absl::InternalError("a CPU decode in a GPU only step");
    }
    if (work.tokens.empty() || (IsDecode(work.kind) && work.tokens.size() != 1)) {
      return absl::InternalError(absl::StrCat("a sequence with ", work.tokens.size(), " rows"));
    }
    if (work.start_position < 0 || end > limits_.max_positions) {
      return absl::InternalError(
          absl::StrCat("position ", end, " of at most ", limits_.max_positions));
    }
    for (const int32_t token : work.tokens) {
      TANDEM_RETURN_IF_ERROR(CheckToken(token));
    }
    if (work.num_prompt_logprobs >= 0) {
      if (work.next_tokens.size() > work.tokens.size()) {
        return absl::InternalError("more next tokens than rows");
      }
      for (const int32_t token : work.next_tokens) {
        TANDEM_RETURN_IF_ERROR(CheckToken(token));
      }
    }
    if (work.sample.has_value() && work.sample->params == nullptr) {
      return absl::InternalError("a token to sample without parameters");
    }
    if (OnDevice(work.kind)) {
      return CheckBlocks(work.block_table, limits_.num_gpu_blocks,
                         BlocksFor(end, limits_.gpu_block_tokens), "device");
    }
    const auto staged = static_cast<int64_t>(limits_.staging_table.size());
    if (work.kind == WorkKind::kPrefillCpu && BlocksFor(end, limits_.gpu_block_tokens) > staged) {
      return absl::InternalError(absl::StrCat("a CPU prefill of ", end,
                                              " tokens; staged are at most ",
                                              staged * limits_.gpu_block_tokens));
    }
    return CheckBlocks(work.block_table, limits_.num_cpu_blocks,
                       BlocksFor(end, limits_.cpu_block_tokens), "CPU");
  }

  absl::Status CheckToken(int32_t token) const {
    if (token < 0 || token >= limits_.vocab_size) {
      return absl::InternalError(
          absl::StrCat("token ", token, " of a vocabulary of ", limits_.vocab_size));
    }
    return absl::OkStatus();
  }

  void Add(const SequenceWork& work, SubBatchLayout& to) {
    ops::RowRun run;
    run.first_row = to.rows.first + to.rows.count;
    run.num_rows = static_cast<int32_t>(work.tokens.size());
    run.start_position = work.start_position;
    run.block_table = work.block_table;
    to.rows.count += run.num_rows;
    for (int32_t i = 0; i < run.num_rows; ++i) {
      to.tokens.push_back(work.tokens[static_cast<size_t>(i)]);
      to.positions.push_back(work.start_position + i);
    }
    const int32_t end = work.start_position + run.num_rows;
    layout_.max_position = std::max(layout_.max_position, end);
    switch (work.kind) {
      case WorkKind::kPrefillGpu:
        to.store.push_back(run);
        to.prefill.push_back(run);
        break;
      case WorkKind::kDecodeGpu:
        to.store.push_back(run);
        to.decode.push_back(run);
        break;
      case WorkKind::kPrefillCpu:
        run.block_table = limits_.staging_table;
        to.cpu_prefill.push_back({run, work.block_table});
        break;
      case WorkKind::kDecodeCpu:
        to.cpu_rows.push_back(run.first_row);
        to.cpu_slot.push_back({end, work.block_table, work.sequence_id, work.request_id});
        break;
    }
    AddLogitRows(work, run);
  }

  void AddLogitRows(const SequenceWork& work, const ops::RowRun& run) {
    const bool prompt = work.num_prompt_logprobs >= 0 && !work.next_tokens.empty();
    if (!prompt && !work.sample.has_value()) {
      return;
    }
    const auto output = static_cast<int32_t>(layout_.outputs.size());
    layout_.outputs.push_back(&work);
    if (prompt) {
      for (size_t i = 0; i < work.next_tokens.size(); ++i) {
        layout_.logit_rows.push_back(
            {run.first_row + static_cast<int32_t>(i), output, &work, static_cast<int32_t>(i)});
      }
    }
    if (work.sample.has_value()) {
      layout_.logit_rows.push_back({run.first_row + run.num_rows - 1, output, &work, -1});
    }
  }

  const StepInput& input_;
  const LayoutLimits& limits_;
  StepLayout layout_;
  size_t staging_used_ = 0;  // entries of the staging table
};

}  // namespace

absl::StatusOr<StepLayout> BuildStepLayout(const StepInput& input, const LayoutLimits& limits) {
  return LayoutBuilder(input, limits).Build();
}

}  // namespace tandem::gpu_worker
