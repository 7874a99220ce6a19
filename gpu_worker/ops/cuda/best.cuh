#pragma once

#include "gpu_worker/ops/cuda/intrinsics.cuh"

// The best logit of a row, by a block.
namespace tandem::gpu_worker::ops::cuda {
namespace {

struct Best {
  float logit;
  int32_t token;
};

constexpr int32_t kNoToken = 0x7fffffff;

TANDEM_DEVICE Best NoBest() { return {FloatOf(0xff800000u), kNoToken}; }

// The larger, the lower id on ties.
TANDEM_DEVICE Best Better(const Best& a, const Best& b) {
  return b.logit > a.logit || (b.logit == a.logit && b.token < a.token) ? b : a;
}

TANDEM_DEVICE Best WarpBest(Best best) {
  TANDEM_UNROLL
  for (int lanes = kWarpThreads / 2; lanes > 0; lanes /= 2) {
    best = Better(best, {ShuffleXor(best.logit, lanes), ShuffleXor(best.token, lanes)});
  }
  return best;
}

// The best of the block's threads, in every thread. The parts have an element per warp; barriers
// stand before and behind every use of them.
TANDEM_DEVICE Best BlockBest(Best best, const Shared<float>& logits,
                             const Shared<int32_t>& tokens) {
  best = WarpBest(best);
  SyncBlock();
  if (Lane() == 0) {
    logits.Store(WarpIndex(), best.logit);
    tokens.Store(WarpIndex(), best.token);
  }
  SyncBlock();
  best = NoBest();
  if (Lane() < BlockThreads() / kWarpThreads) {
    best = {logits.Load(Lane()), tokens.Load(Lane())};
  }
  return WarpBest(best);
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
