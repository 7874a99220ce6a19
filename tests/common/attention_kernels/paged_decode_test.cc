#include "common/attention_kernels/paged_decode.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <random>

#include "common/base/bfloat16.h"
#include "tests/common/attention_kernels/paged_case.h"

namespace tandem::attention {
namespace {

// float32 sums of a few hundred terms; pair products with queries and probabilities in bfloat16;
// the same as integers of 15 bits.
constexpr double kFloat32Limit = 2e-6;
constexpr double kBf16Limit = 1e-2;
constexpr double kInt15Limit = 5e-4;

double Limit(Isa isa, const CaseShape& shape) {
  // The rounding error of a score grows with the score.
  const double magnitude = std::max(1.0, static_cast<double>(shape.q_magnitude));
  if (isa == Isa::kAvx2 && shape.kv_dtype == DType::kInt8) {
    return kInt15Limit * magnitude;
  }
  const bool pairs = isa == Isa::kAvx512Bf16 || isa == Isa::kAmxBf16 || isa == Isa::kNeonBf16 ||
                     isa == Isa::kSve256;
  if (!pairs || shape.kv_dtype == DType::kFloat32) {
    return kFloat32Limit * magnitude;
  }
  return shape.kv_dtype == DType::kInt8 ? kInt15Limit * magnitude : kBf16Limit;
}

constexpr DType kKvDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kInt8, DType::kFloat8E4M3};

class KernelTest : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    const std::vector<Isa> isas = SupportedIsas();
    if (std::find(isas.begin(), isas.end(), GetParam()) == isas.end()) {
      GTEST_SKIP() << "this CPU lacks " << IsaName(GetParam());
    }
  }

  // An emulator takes fifteen times as long for SVE as for NEON: there its kernels get each kind of
  // shape once (cmake/aarch64-toolchain.cmake says so). On a CPU that has it, all of them.
  static bool Emulated() {
    return GetParam() == Isa::kSve256 && std::getenv("TANDEM_EMULATED") != nullptr;
  }

  AttendSegmentFn Kernel(const PagedCase& paged) {
    return GetAttendSegment(GetParam(), paged.geometry()).value();
  }

  // With and without prefetches, where the kernel has both.
  void Check(const CaseShape& shape) {
    PagedCase paged(shape);
    std::vector<double> out;
    std::vector<double> lse;
    paged.Reference(0, shape.tokens, &out, &lse);
    for (Prefetch prefetch : {Prefetch::kOff, Prefetch::kAhead, Prefetch::kNextTile}) {
      SegmentArgs args = paged.Args(0, shape.tokens);
      args.prefetch = prefetch;
      Kernel(paged)(paged.geometry(), args);
      EXPECT_LE(RelativeError(paged.out(), out), Limit(GetParam(), shape)) << Describe(shape);
      // Absolute: it is the exponent of a weight.
      for (size_t i = 0; i < lse.size(); ++i) {
        EXPECT_NEAR(paged.lse()[i], lse[i], 10 * Limit(GetParam(), shape)) << Describe(shape);
      }
    }
  }
};

TEST_P(KernelTest, EveryLengthUpToTwoBlocks) {
  for (DType kv : kKvDTypes) {
    for (int64_t tokens = 1; tokens <= 65; tokens += Emulated() && tokens % 16 == 1 ? 14 : 1) {
      Check({kv, DType::kFloat32, 2, 3, 32, 32, tokens, 1.0f, static_cast<uint64_t>(tokens)});
    }
    for (int64_t tokens : {127, 128, 129, 143, 255, 256, 257, 513, 1000}) {
      if (!Emulated() || tokens == 129 || tokens == 256) {
        Check({kv, DType::kBFloat16, 1, 4, 64, 128, tokens});
      }
    }
  }
}

TEST_P(KernelTest, EveryHeadDimGroupAndBlockSize) {
  for (DType kv : kKvDTypes) {
    const int32_t head_dim_step = Emulated() ? 80 : 16;  // 16, 96, 176, 256
    for (int32_t head_dim = 16; head_dim <= 256; head_dim += head_dim_step) {
      Check({kv, DType::kFloat32, 2, 2, head_dim, 128, 145});
    }
    for (int32_t group = 1; group <= 17; group += Emulated() && group > 2 ? 5 : 1) {
      Check({kv, DType::kBFloat16, 2, group, 80, 64, 77});
      Check({kv, DType::kFloat16, 1, group, 128, 128, 161});
    }
    for (int32_t block_tokens : {16, 32, 64, 128, 256}) {
      if (!Emulated() || block_tokens == 32) {
        Check({kv, DType::kFloat32, 3, 7, 96, block_tokens, 333});
      }
    }
  }
}

TEST_P(KernelTest, GroupsLargerThanTheScratch) {
  Check({DType::kFloat32, DType::kBFloat16, 1, 71, 256, 16, 40});
  Check({DType::kBFloat16, DType::kFloat32, 1, 71, 256, 16, 40});
  Check({DType::kBFloat16, DType::kFloat32, 70, 2, 256, 16, 20});
}

TEST_P(KernelTest, LargeScoresConcentrateWithoutOverflow) {
  Check({DType::kFloat32, DType::kFloat32, 2, 2, 64, 128, 300, 20.0f});
  for (DType kv : kKvDTypes) {
    PagedCase paged({kv, DType::kFloat32, 1, 2, 64, 128, 200});
    std::vector<float> q(128, 1e30f);
    paged.SetQuery(q);
    paged.Store(150, std::vector<float>(64, 1e30f), std::vector<float>(64, 3.0f));
    paged.Store(20, std::vector<float>(64, -1e30f), std::vector<float>(64, 5.0f));
    paged.Run(Kernel(paged));
    for (float x : paged.out()) {
      EXPECT_NEAR(x, 3.0f, 0.02f);
    }
  }
}

TEST_P(KernelTest, MaximaRiseAndFallFromTileToTile) {
  // By less than what sums are scaled anew for, by more, and far down.
  const float tile_scores[] = {0.0f, 3.0f, 7.5f, 6.0f, 17.0f, 60.0f, 1.0f, 63.0f};
  for (DType kv : kKvDTypes) {
    const CaseShape shape{kv, DType::kFloat32, 1, 3, 64, 128, 1000, 60.0f};
    PagedCase paged(shape);
    std::mt19937 random(5);
    for (int64_t token = 0; token < shape.tokens; ++token) {
      std::vector<float> v(64);
      for (float& x : v) {
        x = static_cast<float>(random() % 2000) * 1e-3f - 1.0f;
      }
      const float score = tile_scores[token / 128] - static_cast<float>(random() % 100) * 1e-2f;
      paged.Store(token, std::vector<float>(64, score / 8.0f), v);
    }
    paged.SetQuery(std::vector<float>(3 * 64, 1.0f));
    for (int64_t tokens : {256, 384, 640, 900, 1000}) {
      std::vector<double> out;
      std::vector<double> lse;
      paged.Reference(0, tokens, &out, &lse);
      paged.Run(Kernel(paged), 0, tokens);
      EXPECT_LE(RelativeError(paged.out(), out), Limit(GetParam(), shape))
          << DTypeName(kv) << " " << tokens;
      EXPECT_NEAR(paged.lse()[2], lse[2], 10 * Limit(GetParam(), shape));
    }
  }
}

TEST_P(KernelTest, EqualScoresGiveTheMean) {
  PagedCase paged({DType::kBFloat16, DType::kFloat32, 1, 1, 16, 16, 48});
  paged.SetQuery(std::vector<float>(16, 0.0f));
  for (int64_t t = 0; t < 48; ++t) {
    paged.Store(t, std::vector<float>(16, 1.0f), std::vector<float>(16, static_cast<float>(t)));
  }
  paged.Run(Kernel(paged));
  EXPECT_NEAR(paged.out()[7], 23.5f, 0.05f);
  EXPECT_NEAR(paged.lse()[0], std::log(48.0f), 1e-5f);
}

TEST_P(KernelTest, NanOfOneHeadStaysInThatHead) {
  for (DType kv : kKvDTypes) {
    for (int64_t token : {10, 150}) {  // of the first tile and of a later one
      PagedCase paged({kv, DType::kFloat32, 2, 2, 32, 64, 200});
      std::vector<float> k(64, 0.5f);
      k[40] = NAN;  // second head
      paged.Store(token, k, std::vector<float>(64, 0.5f));
      paged.Run(Kernel(paged));
      EXPECT_TRUE(std::isfinite(paged.out()[0]));
      EXPECT_TRUE(std::isfinite(paged.out()[63]));
      EXPECT_TRUE(std::isnan(paged.out()[64])) << DTypeName(kv) << " token " << token;
    }
  }
}

TEST_P(KernelTest, NanInValuesStaysInItsHead) {
  for (DType kv : kKvDTypes) {
    PagedCase paged({kv, DType::kFloat32, 2, 5, 32, 64, 47});
    std::vector<float> v(64, 0.5f);
    v[3] = NAN;  // first head
    paged.Store(46, std::vector<float>(64, 0.5f), v);
    paged.Run(Kernel(paged));
    for (size_t i = 0; i < 10; ++i) {
      EXPECT_EQ(std::isnan(paged.out()[i * 32 + 3]), i < 5) << DTypeName(kv) << " head " << i;
      EXPECT_TRUE(std::isfinite(paged.lse()[i]));
    }
  }
}

TEST_P(KernelTest, TinyValuesAreNotLost) {
  for (DType kv : {DType::kFloat32, DType::kBFloat16, DType::kInt8}) {
    const CaseShape shape{kv, DType::kFloat32, 1, 3, 48, 64, 150};
    PagedCase paged(shape);
    std::mt19937 random(8);
    for (int64_t token = 0; token < shape.tokens; ++token) {
      std::vector<float> k(48), v(48);
      for (size_t d = 0; d < 48; ++d) {
        k[d] = (static_cast<float>(random() % 2000) - 1000.0f) * 1e-28f;
        v[d] = (static_cast<float>(random() % 2000) + 1.0f) * 1e-28f;
      }
      paged.Store(token, k, v);
    }
    paged.SetQuery(std::vector<float>(3 * 48, 1e-10f));
    paged.Run(Kernel(paged));
    std::vector<double> out;
    std::vector<double> lse;
    paged.Reference(0, shape.tokens, &out, &lse);
    EXPECT_LE(RelativeError(paged.out(), out), Limit(GetParam(), shape)) << DTypeName(kv);
    EXPECT_NEAR(paged.lse()[0], std::log(150.0), 1e-4);
  }
}

TEST_P(KernelTest, SegmentsMergeToTheWhole) {
  for (DType kv : kKvDTypes) {
    const CaseShape shape{kv, DType::kFloat32, 2, 3, 48, 128, 700};
    PagedCase paged(shape);
    std::vector<double> want;
    std::vector<double> unused;
    paged.Reference(0, shape.tokens, &want, &unused);
    std::vector<std::vector<float>> outs;
    std::vector<std::vector<float>> lses;
    for (auto [first, count] : {std::pair{0, 16}, {16, 256}, {272, 400}, {672, 28}}) {
      paged.Run(Kernel(paged), first, count);
      outs.push_back(paged.out());
      lses.push_back(paged.lse());
    }
    std::vector<float> merged(want.size());
    for (size_t head = 0; head < 6; ++head) {
      const float* parts[4];
      float lse[4];
      for (size_t i = 0; i < 4; ++i) {
        parts[i] = &outs[i][head * 48];
        lse[i] = lses[i][head];
      }
      MergeSegments(parts, lse, 4, 48, &merged[head * 48]);
    }
    EXPECT_LE(RelativeError(merged, want), Limit(GetParam(), shape));
  }
}

TEST_P(KernelTest, HeadRangeWritesOnlyItsHeads) {
  PagedCase paged({DType::kFloat32, DType::kFloat32, 3, 2, 16, 16, 20});
  SegmentArgs args = paged.Args(0, 20);
  args.kv_head_begin = 1;
  args.kv_head_end = 2;
  Kernel(paged)(paged.geometry(), args);
  for (size_t i = 0; i < paged.out().size(); ++i) {
    EXPECT_EQ(std::isnan(paged.out()[i]), i < 32 || i >= 64) << i;
  }
  EXPECT_TRUE(std::isnan(paged.lse()[1]) && std::isnan(paged.lse()[4]));
  EXPECT_TRUE(std::isfinite(paged.lse()[2]) && std::isfinite(paged.lse()[3]));
}

TEST_P(KernelTest, RandomShapes) {
  std::mt19937_64 random(99);
  const int32_t blocks[] = {16, 32, 64, 128};
  for (int i = 0; i < (Emulated() ? 8 : 120); ++i) {
    CaseShape shape;
    shape.kv_dtype = kKvDTypes[random() % std::size(kKvDTypes)];
    const DType q_dtypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};
    shape.q_dtype = q_dtypes[random() % std::size(q_dtypes)];
    shape.kv_heads = static_cast<int32_t>(1 + random() % 4);
    shape.group = static_cast<int32_t>(1 + random() % 9);
    shape.head_dim = static_cast<int32_t>(16 * (1 + random() % 16));
    shape.block_tokens = blocks[random() % 4];
    shape.tokens = static_cast<int64_t>(1 + random() % 400);
    shape.seed = random();
    Check(shape);
  }
}

TEST_P(KernelTest, StoreRowRoundsToNearestEven) {
  std::mt19937 random(3);
  std::vector<float> values = {0.0f,  -0.0f,  1.0f,  65504.0f, 65519.0f, 65520.0f,
                               1e-7f, 6e-8f,  3e-8f, -1e-45f,  INFINITY, -INFINITY,
                               3e38f, 1e-38f, 0.5f,  -2.0f};
  for (int i = 0; i < 4096; ++i) {
    values.push_back(std::ldexp(static_cast<float>(random()) / 3e9f - 0.7f,
                                static_cast<int>(random() % 60) - 30));
  }
  std::vector<uint16_t> bf16(values.size()), half(values.size());
  GetStoreRow(GetParam())(values.data(), values.size(), DType::kBFloat16, bf16.data());
  GetStoreRow(GetParam())(values.data(), values.size(), DType::kFloat16, half.data());
  for (size_t i = 0; i < values.size(); ++i) {
    EXPECT_EQ(bf16[i], base::FloatToBFloat16(values[i])) << values[i];
    const float step =
        std::max(0x1p-24f, std::ldexp(1.0f, std::max(std::ilogb(values[i]), -30) - 10));
    const float limit = std::abs(values[i]) < 65520.0f ? std::abs(values[i]) : INFINITY;
    if (limit == INFINITY) {
      EXPECT_TRUE(std::isinf(base::HalfToFloat(half[i]))) << values[i];
    } else {
      const float error = std::abs(base::HalfToFloat(half[i]) - values[i]);
      EXPECT_LE(error, step / 2) << values[i];
      if (error == step / 2) {
        EXPECT_EQ(half[i] % 2, 0) << values[i];
      }
    }
  }
  std::vector<float> nan(16, NAN);
  GetStoreRow(GetParam())(nan.data(), 16, DType::kBFloat16, bf16.data());
  GetStoreRow(GetParam())(nan.data(), 16, DType::kFloat16, half.data());
  EXPECT_TRUE(std::isnan(base::BFloat16ToFloat(bf16[5])));
  EXPECT_TRUE(std::isnan(base::HalfToFloat(half[5])));
}

INSTANTIATE_TEST_SUITE_P(Isas, KernelTest,
                         testing::Values(Isa::kScalar, Isa::kAvx2, Isa::kAvx512, Isa::kAvx512Bf16,
                                         Isa::kAmxBf16, Isa::kNeon, Isa::kNeonBf16, Isa::kSve256),
                         [](const auto& info) { return std::string(IsaName(info.param)); });

TEST(IsaTest, NamesAreChosenOrRefused) {
  EXPECT_EQ(ChooseIsa("scalar").value(), Isa::kScalar);
  EXPECT_EQ(ChooseIsa("auto").value(), SupportedIsas().front());
  EXPECT_EQ(SupportedIsas().back(), Isa::kScalar);
  EXPECT_EQ(ChooseIsa("mmx").status().code(), absl::StatusCode::kInvalidArgument);
  kv::PoolGeometry geometry{DType::kFloat16, 1, 1, 64, 128};
  EXPECT_EQ(GetAttendSegment(Isa::kScalar, geometry).status().code(),
            absl::StatusCode::kUnimplemented);
}

TEST(MergeTest, FarApartWeightsAndInPlace) {
  float a[2] = {1.0f, 2.0f};
  float b[2] = {3.0f, 4.0f};
  const float* parts[2] = {a, b};
  const float lse[2] = {-3e38f, 3e38f};
  MergeSegments(parts, lse, 2, 2, a);
  EXPECT_EQ(a[0], 3.0f);
  EXPECT_EQ(a[1], 4.0f);
}

}  // namespace
}  // namespace tandem::attention
