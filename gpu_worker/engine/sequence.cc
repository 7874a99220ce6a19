#include "gpu_worker/engine/sequence.h"

#include <algorithm>

namespace tandem::gpu_worker {

FinishReason FinishAfterNewestToken(const Sequence& sequence) {
  const auto is_newest = [&](int32_t token) { return token == sequence.tokens.back(); };
  if (sequence.output_size() > 0) {
    const auto& stops = sequence.stop_tokens;
    const auto& ends = sequence.end_tokens;
    if ((sequence.may_stop() && std::any_of(stops.begin(), stops.end(), is_newest)) ||
        std::any_of(ends.begin(), ends.end(), is_newest)) {
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
