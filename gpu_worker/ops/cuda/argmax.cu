#include "gpu_worker/ops/cuda/best.cuh"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kArgmaxThreads = 512;

}  // namespace

// Grid [rows].
TANDEM_KERNEL(argmax, ArgmaxParams, kArgmaxThreads, kBarriers) {
  constexpr int kWarps = kArgmaxThreads / kWarpThreads;
  TANDEM_SHARED(float, logits, kWarps);
  TANDEM_SHARED(int32_t, tokens, kWarps);
  const float* row = params.logits + int64_t{BlockX()} * params.vocab;
  Best best = NoBest();
  for (int i = ThreadIndex(); i < params.vocab; i += BlockThreads()) {
    if (row[i] > best.logit) {  // never a NaN; the first of equals is the lowest id
      best = {row[i], i};
    }
  }
  best = BlockBest(best, logits, tokens);
  if (ThreadIndex() == 0) {
    params.tokens[BlockX()] = best.token == kNoToken ? 0 : best.token;
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
