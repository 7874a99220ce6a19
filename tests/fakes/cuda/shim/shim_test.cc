#include <string>
#include <thread>
#include <vector>

#include "gtest/gtest.h"
#include "tests/fakes/cuda/shim/block.h"
#include "tests/fakes/cuda/shim/faulty_kernels.h"
#include "tests/fakes/cuda/shim/grid.h"

namespace tandem::shim {
namespace {

using gpu_worker::ops::cuda::FaultyParams;

// Runs a kernel of two warps and returns what the shim found.
std::string FaultsOf(const char* kernel, int32_t step = 0, std::vector<int32_t>* out = nullptr) {
  std::vector<int32_t> result(256);
  alignas(16) int32_t in[256];
  for (int32_t i = 0; i < 256; ++i) {
    in[i] = i + 1000;
  }
  const FaultyParams params{result.data(), in, step};
  const uint32_t grid[3] = {1, 1, 1};
  const uint32_t block[3] = {std::string(kernel) == "shim_matrix" ? 32u : 64u, 1, 1};
  EXPECT_TRUE(RunKernel(kernel, grid, block, 0, &params));
  if (out != nullptr) {
    *out = result;
  }
  return TakeFaults();
}

bool Contains(const std::string& text, const char* part) {
  return text.find(part) != std::string::npos;
}

TEST(ShimTest, FindsReadsOfWhatWasWrittenWithoutABarrier) {
  EXPECT_EQ(FaultsOf("shim_pass_on", 1), "");
  EXPECT_EQ(FaultsOf("shim_pass_on", 33), "");
  const std::string faults = FaultsOf("shim_pass_on_without_barrier", 1);
  EXPECT_TRUE(Contains(faults, "a race in shared memory")) << faults;
  EXPECT_TRUE(Contains(faults, "shim_pass_on_without_barrier: block (0, 0, 0) thread")) << faults;
  // A thread's own element is no race.
  EXPECT_EQ(FaultsOf("shim_pass_on_without_barrier", 0), "");
}

TEST(ShimTest, AWarpsBarrierOrdersItsOwnLanesOnly) {
  // Lane 31 reads thread 32's element.
  EXPECT_TRUE(Contains(FaultsOf("shim_pass_on_in_warp", 1), "a race"));
  EXPECT_TRUE(Contains(FaultsOf("shim_pass_on_in_warp", 32), "a race"));
  EXPECT_EQ(FaultsOf("shim_pass_on_in_warp", 0), "");
}

TEST(ShimTest, FindsWritesOverWhatOthersRead) {
  EXPECT_TRUE(Contains(FaultsOf("shim_overwrite"), "writes byte"));
}

TEST(ShimTest, FindsAccessesOutOfBounds) {
  EXPECT_TRUE(Contains(FaultsOf("shim_out_of_bounds"), "element 64 of 64 in shared memory"));
  EXPECT_TRUE(Contains(FaultsOf("shim_more_than_launched"), "more dynamic shared memory"));
  EXPECT_TRUE(Contains(FaultsOf("shim_misaligned"), "misaligned access of 16 bytes"));
}

TEST(ShimTest, FindsBarriersThatNotAllThreadsReach) {
  EXPECT_TRUE(Contains(FaultsOf("shim_divergent_barrier"), "never come to the same barrier"));
  EXPECT_TRUE(Contains(FaultsOf("shim_unexpected_barrier"), "declared to have none"));
  EXPECT_EQ(FaultsOf("shim_pass_on", 1), "") << "the next kernel runs as if nothing had happened";
}

TEST(ShimTest, AsynchronousCopiesAreGarbageUntilTheyAreWaitedFor) {
  std::vector<int32_t> out;
  EXPECT_EQ(FaultsOf("shim_copy_too_early", 0, &out), "");
  EXPECT_EQ(out[3], -1);
  EXPECT_TRUE(Contains(FaultsOf("shim_copy_too_early", 1), "a race")) << "others' need a barrier";
  EXPECT_EQ(FaultsOf("shim_copy_too_early", 2, &out), "");
  EXPECT_EQ(out[3], 1016);
}

TEST(ShimTest, WarpOperationsDoWhatTheirDefinitionsSay) {
  std::vector<int32_t> out;
  EXPECT_EQ(FaultsOf("shim_warp_operations", 0, &out), "");
  for (size_t i = 0; i < 64; ++i) {
    EXPECT_EQ(out[i], 1) << i;
  }
}

TEST(ShimTest, MatrixProductsPickRowsAndColumns) {
  for (const int32_t step : {0, 5, 8}) {
    std::vector<int32_t> out;
    EXPECT_EQ(FaultsOf("shim_matrix", step, &out), "");
    for (int32_t row = 0; row < 16; ++row) {
      for (int32_t column = 0; column < 8; ++column) {
        EXPECT_EQ(out[static_cast<size_t>(row * 8 + column)], (100 + row) * 16 + column + step);
      }
    }
  }
}

TEST(ShimTest, ImpossibleLaunchesAndUnknownKernels) {
  const FaultyParams params;
  const uint32_t one[3] = {1, 1, 1};
  const uint32_t wide[3] = {65, 1, 1};
  const uint32_t deep[3] = {1, 65536, 1};
  EXPECT_FALSE(RunKernel("no_such_kernel", one, one, 0, &params));
  EXPECT_EQ(KernelParamsBytes("no_such_kernel"), 0u);
  EXPECT_EQ(KernelParamsBytes("shim_pass_on"), sizeof(FaultyParams));
  EXPECT_TRUE(RunKernel("shim_pass_on", one, wide, 0, &params));
  EXPECT_TRUE(Contains(TakeFaults(), "no device takes"));
  EXPECT_TRUE(RunKernel("shim_pass_on", deep, one, 0, &params));
  EXPECT_TRUE(Contains(TakeFaults(), "no device takes"));
}

TEST(ShimTest, HostThreadsRunKernelsSideBySide) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 2; ++i) {
    threads.emplace_back([] {
      for (int k = 0; k < 20; ++k) {
        EXPECT_EQ(FaultsOf("shim_pass_on", 1), "");
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
}

TEST(HalfTest, RoundsToNearestEven) {
  EXPECT_EQ(HalfOfFloat(1.0f), 0x3c00);
  EXPECT_EQ(HalfOfFloat(-2.0f), 0xc000);
  EXPECT_EQ(HalfOfFloat(1.0f + 0x1p-11f), 0x3c00);  // a tie, to even
  EXPECT_EQ(HalfOfFloat(1.0f + 3 * 0x1p-11f), 0x3c02);
  EXPECT_EQ(HalfOfFloat(65519.0f), 0x7bff);
  EXPECT_EQ(HalfOfFloat(65520.0f), 0x7c00);
  EXPECT_EQ(HalfOfFloat(0x1p-24f), 0x0001);
  EXPECT_EQ(HalfOfFloat(0x1p-25f), 0x0000);
  EXPECT_EQ(HalfOfFloat(0x1.ffep-15f), 0x0400);  // up to the smallest normal number
}

}  // namespace
}  // namespace tandem::shim
