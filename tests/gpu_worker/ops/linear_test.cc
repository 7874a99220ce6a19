#include "gpu_worker/ops/linear.h"

#include <algorithm>
#include <vector>

#include "common/attention_kernels/paged_decode.h"
#include "tests/gpu_worker/ops/ops_fixture.h"

namespace tandem::gpu_worker::ops {
namespace {

struct Sizes {
  int64_t n;
  int64_t k;
};

class LinearTest : public OpsTest {
 protected:
  std::unique_ptr<PackedLinear> Pack(const std::vector<float>& weights, Sizes sizes,
                                     std::vector<float> bias = {}) {
    LinearSource source;
    source.out_features = sizes.n;
    source.in_features = sizes.k;
    source.bias = std::move(bias);
    source.read = [&weights, sizes](int64_t first, int64_t count, float* out) {
      std::memcpy(out, weights.data() + first * sizes.k,
                  static_cast<size_t>(count * sizes.k) * sizeof(float));
    };
    auto packed = PackLinear(f().context(), std::move(source));
    EXPECT_TRUE(packed.ok()) << packed.status();
    f().Sync();
    return *std::move(packed);
  }
};

double Dot(const std::vector<float>& in, int64_t row, const std::vector<float>& weights, int64_t n,
           int64_t k) {
  double sum = 0;
  for (int64_t i = 0; i < k; ++i) {
    sum += double{in[static_cast<size_t>(row * k + i)]} * weights[static_cast<size_t>(n * k + i)];
  }
  return sum;
}

// Which product of the host's a size of the next test is for: on a CPU with AMX [192, 64],
// [160, 224] and [77, 96] in bfloat16 are our own's, odd n, bias and adding included; on one
// without AVX-512 all in bfloat16 are. The others, and all in float32, are oneDNN's.
TEST(PackedFormatTest, BFloat16GoesToWhatTheCpuHas) {
  using Order = host::PackedFormat::Order;
  const std::vector<attention::Isa> isas = attention::SupportedIsas();
  const auto has = [&isas](attention::Isa isa) {
    return std::find(isas.begin(), isas.end(), isa) != isas.end();
  };
  const bool only_avx2 = has(attention::Isa::kAvx2) && !has(attention::Isa::kAvx512);
  for (const Sizes sizes : {Sizes{192, 64}, Sizes{77, 96}, Sizes{577, 33}, Sizes{16, 16}}) {
    EXPECT_EQ(host::ChoosePackedFormat(DType::kFloat32, sizes.n, sizes.k).order, Order::kOneDnn);
    if (HostRunsBFloat16()) {
      EXPECT_EQ(host::ChoosePackedFormat(DType::kBFloat16, sizes.n, sizes.k).order,
                only_avx2                                            ? Order::kAvx2
                : has(attention::Isa::kAmxBf16) && sizes.k % 32 == 0 ? Order::kAmx
                                                                     : Order::kOneDnn)
          << sizes.k;
    }
  }
}

// Sizes that fill the blocks of oneDNN and of the AMX unit, and sizes that leave padding.
TEST_P(LinearTest, MatchesTheReferenceForAllRowCounts) {
  for (const Sizes sizes :
       {Sizes{192, 64}, Sizes{160, 224}, Sizes{577, 33}, Sizes{16, 16}, Sizes{77, 96}}) {
    const auto weights = f().RandomExact(static_cast<size_t>(sizes.n * sizes.k), 0.2f);
    const auto bias = f().Random(static_cast<size_t>(sizes.n));
    const auto packed = Pack(weights, sizes);
    const auto with_bias = Pack(weights, sizes, bias);
    for (const int64_t rows : {1, 2, 3, 4, 5, 7, 16, 17, 33, 130, 290}) {
      const auto spare = static_cast<size_t>((LinearRows(rows) - rows) * sizes.k);
      const auto in = f().RandomExact(static_cast<size_t>(rows * sizes.k));
      const OnDevice encoded(f(), f().Encode(in, spare));
      const auto out_size = static_cast<size_t>(LinearRows(rows) * sizes.n);
      const OnDevice<float> plain_there(f(), out_size);
      const OnDevice<float> biased_there(f(), out_size);
      const OnDevice added_there(f(), std::vector<float>(out_size, 3.0f));
      const auto call = [&](const PackedLinear& linear, const OnDevice<float>& out,
                            bool accumulate) {
        Linear(f().context(), {&linear, encoded.data(), reinterpret_cast<std::byte*>(out.data()),
                               rows, DType::kFloat32, accumulate});
      };
      call(*packed, plain_there, false);
      call(*with_bias, biased_there, false);
      call(*packed, added_there, true);
      const OnDevice<std::byte> compute(f(), out_size * 4);
      Linear(f().context(),
             {packed.get(), encoded.data(), compute.data(), rows, f().context().compute_dtype()});
      const std::vector<float> plain = plain_there.Read();
      const std::vector<float> biased = biased_there.Read();
      const std::vector<float> added = added_there.Read();
      const auto rounded = f().Decode(compute.Read());
      for (int64_t row = 0; row < rows; ++row) {
        for (int64_t n = 0; n < sizes.n; n += 5) {
          const auto at = static_cast<size_t>(row * sizes.n + n);
          const double expected = Dot(in, row, weights, n, sizes.k);
          const double tolerance = 1e-5 * (1 + std::abs(expected));
          ASSERT_NEAR(plain[at], expected, tolerance) << sizes.n << " " << rows << " " << n;
          ASSERT_NEAR(biased[at], expected + bias[static_cast<size_t>(n)], 2 * tolerance);
          ASSERT_NEAR(added[at], expected + 3.0, 2 * tolerance);
          ASSERT_NEAR(rounded[at], expected,
                      f().tolerance() * (1 + std::abs(expected)) + tolerance);
        }
      }
    }
  }
}

TEST_P(LinearTest, RowsComeBackFromPackedWeights) {
  const Sizes sizes{100, 48};
  const auto weights = f().RandomExact(static_cast<size_t>(sizes.n * sizes.k));
  const auto packed = Pack(weights, sizes);
  const std::vector<int32_t> ids = {99, 0, 64, 64, 63, 1};
  const OnDevice<float> rows(f(), ids.size() * static_cast<size_t>(sizes.k));
  GatherPackedRows(f().context(), *packed, ids, rows.data());
  const std::vector<float> out = rows.Read();
  for (size_t i = 0; i < ids.size(); ++i) {
    for (int64_t k = 0; k < sizes.k; ++k) {
      EXPECT_EQ(out[i * static_cast<size_t>(sizes.k) + static_cast<size_t>(k)],
                weights[static_cast<size_t>(ids[i] * sizes.k + k)]);
    }
  }
}

TEST_P(LinearTest, TablesAreConverted) {
  const auto table = f().RandomExact(150 * 20);
  const OnDevice<std::byte> out(f(), table.size() * 4);
  ConvertTable(f().context(), {[&](int64_t first, int64_t count, float* to) {
                                 std::memcpy(to, table.data() + first * 20,
                                             static_cast<size_t>(count) * 20 * sizeof(float));
                               },
                               150, 20, out.data()});
  const auto decoded = f().Decode(out.Read());
  for (size_t i = 0; i < table.size(); ++i) {
    ASSERT_EQ(decoded[i], table[i]);
  }
}

TEST(LinearRowsTest, BucketsAreExactForFewRowsAndWithinAnEighthAbove) {
  int64_t last = 0;
  int buckets = 0;
  for (int64_t rows = 1; rows <= 4096; ++rows) {
    const int64_t bucket = LinearRows(rows);
    ASSERT_GE(bucket, rows);
    ASSERT_LE(bucket - rows, rows <= 16 ? 0 : std::max<int64_t>(3, rows / 8));
    ASSERT_EQ(LinearRows(bucket), bucket);
    ASSERT_GE(bucket, last);
    buckets += bucket != last;
    last = bucket;
  }
  EXPECT_LE(buckets, 100);
}

INSTANTIATE_TEST_SUITE_P(DTypes, LinearTest, testing::Values(DType::kFloat32, DType::kBFloat16),
                         DTypeOf);

}  // namespace
}  // namespace tandem::gpu_worker::ops
