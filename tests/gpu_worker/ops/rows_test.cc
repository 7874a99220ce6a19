#include "gpu_worker/ops/rows.h"

#include <vector>

#include "tests/gpu_worker/ops/ops_fixture.h"

namespace tandem::gpu_worker::ops {
namespace {

class RowsTest : public OpsTest {};

// Odd widths reach the tails of vector loops; many rows the parallel path.
TEST_P(RowsTest, RmsNormWithAndWithoutRowIds) {
  for (const int64_t width : {5, 64, 577}) {
    const int64_t rows = 40;
    const auto in = f().Random(static_cast<size_t>(rows * width), 3.0f);
    const auto weight = f().Random(static_cast<size_t>(width));
    const std::vector<int32_t> ids = {39, 3, 3, 0};
    const OnDevice in_there(f(), in);
    const OnDevice weight_there(f(), weight);
    const OnDevice<std::byte> all(f(), static_cast<size_t>(rows * width) * 4);
    const OnDevice<std::byte> some(f(), ids.size() * static_cast<size_t>(width) * 4);
    RmsNormArgs args{in_there.data(), weight_there.data(), 1e-5f, rows, width, nullptr, all.data()};
    RmsNorm(f().context(), args);
    args.rows = static_cast<int64_t>(ids.size());
    args.row_ids = ids.data();
    args.out = some.data();
    RmsNorm(f().context(), args);
    const auto got = f().Decode(all.Read());
    const auto got_some = f().Decode(some.Read());
    for (int64_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int64_t i = 0; i < width; ++i) {
        sum += std::pow(double{in[static_cast<size_t>(row * width + i)]}, 2);
      }
      const double factor = 1.0 / std::sqrt(sum / static_cast<double>(width) + 1e-5);
      for (int64_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>(row * width + i);
        const double expected = in[at] * factor * weight[static_cast<size_t>(i)];
        ASSERT_NEAR(got[at], expected, f().tolerance() * std::abs(expected) + 1e-7);
      }
    }
    for (size_t i = 0; i < ids.size(); ++i) {
      for (size_t k = 0; k < static_cast<size_t>(width); ++k) {
        ASSERT_EQ(got_some[i * static_cast<size_t>(width) + k],
                  got[static_cast<size_t>(ids[i]) * static_cast<size_t>(width) + k]);
      }
    }
  }
}

TEST_P(RowsTest, RopeRotatesHalvesAndNormalisesHeads) {
  const int32_t q_heads = 3;
  const int32_t kv_heads = 2;
  for (const int32_t head_dim : {16, 48, 128}) {
    const size_t half = static_cast<size_t>(head_dim) / 2;
    const std::vector<int32_t> positions = {0, 9, 4, 9, 1, 2, 3, 5, 6, 7, 8, 0, 1, 2};
    const auto cos = f().Random(10 * half);
    const auto sin = f().Random(10 * half);
    const auto q_norm = f().Random(static_cast<size_t>(head_dim));
    const auto k_norm = f().Random(static_cast<size_t>(head_dim));
    const OnDevice cos_there(f(), cos);
    const OnDevice sin_there(f(), sin);
    const OnDevice q_norm_there(f(), q_norm);
    const OnDevice k_norm_there(f(), k_norm);
    const auto stride = static_cast<size_t>((q_heads + 2 * kv_heads) * head_dim);
    for (const bool norm : {false, true}) {
      const auto before = f().Random(positions.size() * stride);
      const OnDevice rotated(f(), before);
      RopeArgs args{rotated.data(), positions, cos_there.data(), sin_there.data()};
      args.q_norm = norm ? q_norm_there.data() : nullptr;
      args.k_norm = norm ? k_norm_there.data() : nullptr;
      args.eps = 1e-6f;
      args.num_q_heads = q_heads;
      args.num_kv_heads = kv_heads;
      args.head_dim = head_dim;
      Rope(f().context(), args);
      const std::vector<float> qkv = rotated.Read();
      for (size_t row = 0; row < positions.size(); ++row) {
        for (int32_t head = 0; head < q_heads + 2 * kv_heads; ++head) {
          const size_t at = row * stride + static_cast<size_t>(head * head_dim);
          std::vector<double> x(before.begin() + static_cast<int64_t>(at),
                                before.begin() + static_cast<int64_t>(at) + head_dim);
          if (head >= q_heads + kv_heads) {
            for (size_t d = 0; d < x.size(); ++d) {
              ASSERT_EQ(qkv[at + d], before[at + d]);  // V stays
            }
            continue;
          }
          if (norm) {
            double sum = 0;
            for (const double value : x) {
              sum += value * value;
            }
            for (size_t d = 0; d < x.size(); ++d) {
              x[d] *= (head < q_heads ? q_norm : k_norm)[d] / std::sqrt(sum / head_dim + 1e-6);
            }
          }
          for (size_t d = 0; d < half; ++d) {
            const size_t angle = static_cast<size_t>(positions[row]) * half + d;
            ASSERT_NEAR(qkv[at + d], x[d] * cos[angle] - x[d + half] * sin[angle], 2e-5);
            ASSERT_NEAR(qkv[at + half + d], x[d + half] * cos[angle] + x[d] * sin[angle], 2e-5);
          }
        }
      }
    }
  }
}

TEST_P(RowsTest, SiluMul) {
  const int64_t rows = 9;
  for (const int64_t width : {3, 100, 600}) {
    auto gate_up = f().RandomExact(static_cast<size_t>(rows * 2 * width), 4.0f);
    gate_up[0] = 90.0f;  // beyond where e^x is finite
    gate_up[1] = -90.0f;
    gate_up[2] = 0.0f;
    const OnDevice encoded(f(), f().Encode(gate_up));
    const OnDevice<std::byte> out(f(), static_cast<size_t>(rows * width) * 4);
    SiluMul(f().context(), {encoded.data(), rows, width, out.data()});
    const auto got = f().Decode(out.Read());
    for (int64_t row = 0; row < rows; ++row) {
      for (int64_t i = 0; i < width; ++i) {
        const double gate = gate_up[static_cast<size_t>(row * 2 * width + i)];
        const double up = gate_up[static_cast<size_t>(row * 2 * width + width + i)];
        const double expected = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(got[static_cast<size_t>(row * width + i)], expected,
                    f().tolerance() * std::abs(expected) + 1e-30);
      }
    }
  }
}

TEST_P(RowsTest, EmbedTakesRows) {
  const int64_t width = 24;
  const auto table = f().RandomExact(static_cast<size_t>(300 * width));
  const OnDevice encoded(f(), f().Encode(table));
  std::vector<int32_t> ids(257);
  for (size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<int32_t>(i * 7 % 300);
  }
  const OnDevice<float> rows(f(), ids.size() * static_cast<size_t>(width));
  Embed(f().context(), {encoded.data(), ids, width, rows.data()});
  const std::vector<float> out = rows.Read();
  for (size_t i = 0; i < out.size(); ++i) {
    ASSERT_EQ(out[i], table[static_cast<size_t>(ids[i / static_cast<size_t>(width)] * width) +
                            i % static_cast<size_t>(width)]);
  }
}

// By the host, of any device.
TEST_P(RowsTest, PackRowsTakesColumnsOfRows) {
  const auto in = f().RandomExact(10 * 30);
  const std::vector<int32_t> ids = {7, 2};
  std::vector<std::byte> out(2 * 12 * 4);
  PackRows(f().context(), {in.data(), 30, 5, 12, ids, out.data()});
  const auto got = f().Decode(out);
  for (size_t i = 0; i < 24; ++i) {
    EXPECT_EQ(got[i], in[static_cast<size_t>(ids[i / 12]) * 30 + 5 + i % 12]);
  }
}

INSTANTIATE_TEST_SUITE_P(DTypes, RowsTest, testing::Values(DType::kFloat32, DType::kBFloat16),
                         DTypeOf);

}  // namespace
}  // namespace tandem::gpu_worker::ops
