#include "gpu_worker/engine/sequence.h"

#include <algorithm>

namespace tandem::gpu_worker {

FinishReason FinishAfterNewestToken(const Sequence& sequence) {
  if (sequence.output_size() > 0 && sequence.may_stop()) {
    const auto& stops = sequence.stop_tokens;
    if (std::find(stops.begin(), stops.end(), sequence.tokens.back()) != stops.end()) {
      return FinishReason::kStop;
    }
  }
  return sequence.output_size() >= sequence.max_output ? FinishReason::kLength
                                                       : FinishReason::kNone;
}

GenerationUpdate MakeUpdate(const Sequence& sequence) {
  GenerationUpdate update;
  update.prompt_tokens = sequence.prompt_size;
  update.completion_tokens = sequence.output_size();
  return update;
}

void ForgetCache(Sequence* sequence) {
  SequenceView& view = sequence->view;
  view.tier = Tier::kNone;
  view.cached_tokens = 0;
  view.prefill_end = 0;
  view.blocks = 0;
  sequence->prompt_logprobs.clear();
}

}  // namespace tandem::gpu_worker
