#include "gpu_worker/cost_model/step_load.h"

namespace tandem::gpu_worker {

StepLoad LoadOf(const StepInput& input) {
  StepLoad load;
  load.mode = input.mode;
  load.order = input.order;
  for (const PoolCopy& copy : input.copies) {
    load.copied_gpu_tokens += copy.num_tokens;
  }
  for (int x = 0; x < 2; ++x) {
    SubBatchLoad& to = load.sub_batch[x];
    for (const SequenceWork& work : input.sub_batch[x]) {
      const auto rows = static_cast<int64_t>(work.tokens.size());
      const int64_t context = work.start_position;
      to.rows += rows;
      switch (work.kind) {
        case WorkKind::kDecodeGpu:
          ++to.gpu_decodes;
          to.gpu_context_tokens += context + 1;
          break;
        case WorkKind::kDecodeCpu:
          ++to.cpu_decodes;
          to.cpu_context_tokens += context + 1;
          break;
        case WorkKind::kPrefillCpu:
          to.staged_in_tokens += context;
          to.staged_out_tokens += rows;
          to.prefills.push_back({rows, context});
          break;
        case WorkKind::kPrefillGpu:
          to.prefills.push_back({rows, context});
          break;
      }
    }
  }
  return load;
}

}  // namespace tandem::gpu_worker
