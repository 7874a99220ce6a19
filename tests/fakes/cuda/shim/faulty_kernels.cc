#include "tests/fakes/cuda/shim/faulty_kernels.h"

#include "gpu_worker/ops/cuda/intrinsics.cuh"

// Kernels with one fault each, which the shim must find, and their faultless twins.
namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int kThreads = 64;

// Each thread writes its element and reads its neighbour's.
TANDEM_DEVICE void PassOn(const FaultyParams& params, void (*barrier)()) {
  TANDEM_SHARED(int32_t, values, kThreads);
  values.Store(ThreadIndex(), ThreadIndex());
  barrier();
  params.out[ThreadIndex()] = values.Load((ThreadIndex() + params.step) % kThreads);
}

}  // namespace

TANDEM_KERNEL(shim_pass_on, FaultyParams, kThreads, kBarriers) { PassOn(params, SyncBlock); }
TANDEM_KERNEL(shim_pass_on_without_barrier, FaultyParams, kThreads, kBarriers) {
  PassOn(params, [] {});
}
// Right among the lanes of a warp, not across warps.
TANDEM_KERNEL(shim_pass_on_in_warp, FaultyParams, kThreads, kBarriers) { PassOn(params, SyncWarp); }

// Writes over what others may not have read yet.
TANDEM_KERNEL(shim_overwrite, FaultyParams, kThreads, kBarriers) {
  TANDEM_SHARED(int32_t, value, 1);
  if (ThreadIndex() == 0) {
    value.Store(0, 1);
  }
  SyncBlock();
  params.out[ThreadIndex()] = value.Load(0);
  if (ThreadIndex() == 0) {
    value.Store(0, 2);
  }
}

TANDEM_KERNEL(shim_out_of_bounds, FaultyParams, kThreads, kBarriers) {
  TANDEM_SHARED(int32_t, values, kThreads);
  values.Store(ThreadIndex() + 1, 0);
}

TANDEM_KERNEL(shim_more_than_launched, FaultyParams, kThreads, kBarriers) {
  const auto values = DynamicShared<int32_t>(0, kThreads);
  values.Store(ThreadIndex(), 0);
}

TANDEM_KERNEL(shim_divergent_barrier, FaultyParams, kThreads, kBarriers) {
  if (ThreadIndex() < 40) {
    SyncBlock();
  }
}

TANDEM_KERNEL(shim_unexpected_barrier, FaultyParams, kThreads, kNoBarriers) { SyncBlock(); }

TANDEM_KERNEL(shim_misaligned, FaultyParams, kThreads, kNoBarriers) {
  StoreGlobal(reinterpret_cast<char*>(params.out) + 4, Words4{0, 0, 0, 0});
}

// Reads an asynchronous copy before it waited for it, or before others know of it.
TANDEM_KERNEL(shim_copy_too_early, FaultyParams, kThreads, kBarriers) {
  TANDEM_SHARED(int32_t, values, kThreads * 4);
  CopyAsync16(values, ThreadIndex() * 4, params.in + ThreadIndex() * 4, true);
  CommitCopies();
  if (params.step > 0) {
    WaitCopies<0>();
  }
  if (params.step > 1) {
    SyncBlock();
  }
  params.out[ThreadIndex()] =
      values.Load((ThreadIndex() * 4 + (params.step > 0 ? 4 : 0)) % (kThreads * 4));
  WaitCopies<0>();
}

// Sums of a warp by each kind of operation.
TANDEM_KERNEL(shim_warp_operations, FaultyParams, kThreads, kBarriers) {
  TANDEM_SHARED(int32_t, total, 1);
  if (ThreadIndex() == 0) {
    total.Store(0, 0);
  }
  SyncBlock();
  total.AtomicAdd(0, 1);
  SyncBlock();
  const float sum = WarpSum(static_cast<float>(Lane()));
  const float max = WarpMax(static_cast<float>(Lane() * (WarpIndex() + 1)));
  const uint32_t odd = Ballot(Lane() % 2 == 1);
  const int first = Shuffle(Lane() + 7, 0);
  const bool is_right = sum == 496.0f && max == 31.0f * static_cast<float>(WarpIndex() + 1) &&
                        odd == 0xaaaaaaaau && first == 7 && total.Load(0) == kThreads;
  params.out[ThreadIndex()] = is_right ? 1 : 0;
}

// a [16, 16] of row + column / 16, b [16, 8] the identity's left half, moved down by params.step.
TANDEM_KERNEL(shim_matrix, FaultyParams, kWarpThreads, kBarriers) {
  const int row = Lane() / 4;
  const int column = Lane() % 4 * 2;
  const auto a_at = [](int i, int k) { return static_cast<float>(i) + static_cast<float>(k) / 16; };
  const auto pair = [&](int i, int k) { return HalfPairOf(a_at(i, k), a_at(i, k + 1)); };
  const uint32_t a[4] = {pair(row, column), pair(row + 8, column), pair(row, column + 8),
                         pair(row + 8, column + 8)};
  const auto b_at = [&](int k) { return k - params.step == row ? 1.0f : 0.0f; };
  const uint32_t b[2] = {HalfPairOf(b_at(column), b_at(column + 1)),
                         HalfPairOf(b_at(column + 8), b_at(column + 9))};
  float c[4] = {100, 100, 100, 100};
  MatrixHalf(c, a, b);
  for (int i = 0; i < 4; ++i) {
    const int at = (row + i / 2 * 8) * 8 + column + i % 2;
    params.out[at] = static_cast<int32_t>(c[i] * 16);
  }
}

}  // namespace tandem::gpu_worker::ops::cuda
