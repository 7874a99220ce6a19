#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/gpu_worker/ops/cuda/shim_launcher.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

class CudaRowsTest : public CudaKernelTest {};

// Odd widths reach the paths without vectors; 2500 more than one element of a thread.
TEST_P(CudaRowsTest, RmsNormWithAndWithoutRowIds) {
  for (const int32_t width : {5, 64, 577, 2500}) {
    const int32_t rows = 9;
    const auto values = Random(static_cast<size_t>(rows * width), 3.0f);
    const auto weights = Random(static_cast<size_t>(width));
    const std::vector<int32_t> row_ids = {8, 3, 3, 0};
    Guarded in(values);
    Guarded weight(weights);
    Guarded ids(row_ids);
    Guarded all(values.size() * compute_.element());
    Guarded some(row_ids.size() * static_cast<size_t>(width) * compute_.element());
    RmsNormParams params{in.as<float>(), weight.as<float>(), nullptr, all.data(), 1e-5f, rows,
                         width};
    ASSERT_TRUE(RmsNorm(launcher_, nullptr, GetParam(), params).ok());
    params.rows = static_cast<int32_t>(row_ids.size());
    params.row_ids = ids.as<int32_t>();
    params.out = some.data();
    ASSERT_TRUE(RmsNorm(launcher_, nullptr, GetParam(), params).ok());
    const auto got = compute_.Decode(all);
    const auto got_some = compute_.Decode(some);
    for (int32_t row = 0; row < rows; ++row) {
      double sum = 0;
      for (int32_t i = 0; i < width; ++i) {
        sum += std::pow(double{values[static_cast<size_t>(row * width + i)]}, 2);
      }
      const double factor = 1.0 / std::sqrt(sum / width + 1e-5);
      for (int32_t i = 0; i < width; ++i) {
        const auto at = static_cast<size_t>(row * width + i);
        const double expected = values[at] * factor * weights[static_cast<size_t>(i)];
        ASSERT_NEAR(got[at], expected, compute_.tolerance() * std::abs(expected) + 1e-7);
      }
    }
    for (size_t i = 0; i < row_ids.size(); ++i) {
      for (size_t k = 0; k < static_cast<size_t>(width); ++k) {
        ASSERT_EQ(got_some[i * static_cast<size_t>(width) + k],
                  got[static_cast<size_t>(row_ids[i]) * static_cast<size_t>(width) + k]);
      }
    }
  }
}

TEST_P(CudaRowsTest, SiluMul) {
  const int32_t rows = 5;
  for (const int32_t width : {3, 100, 1030, 2052}) {
    auto values = RandomExact(static_cast<size_t>(rows * 2 * width), 4.0f);
    values[0] = 90.0f;  // beyond where e^x is finite
    values[1] = -90.0f;
    values[2] = 0.0f;
    Guarded gate_up = compute_.Encode(values);
    Guarded out(static_cast<size_t>(rows * width) * compute_.element());
    ASSERT_TRUE(
        SiluMul(launcher_, nullptr, GetParam(), {gate_up.data(), out.data(), rows, width}).ok());
    const auto got = compute_.Decode(out);
    for (int32_t row = 0; row < rows; ++row) {
      for (int32_t i = 0; i < width; ++i) {
        const double gate = values[static_cast<size_t>(row * 2 * width + i)];
        const double up = values[static_cast<size_t>(row * 2 * width + width + i)];
        const double expected = gate / (1 + std::exp(-gate)) * up;
        ASSERT_NEAR(got[static_cast<size_t>(row * width + i)], expected,
                    compute_.tolerance() * std::abs(expected) + 1e-7);
      }
    }
  }
}

TEST_P(CudaRowsTest, EmbedTakesRows) {
  for (const int32_t width : {24, 30, 33}) {
    const auto table = RandomExact(static_cast<size_t>(300 * width));
    Guarded encoded = compute_.Encode(table);
    std::vector<int32_t> ids(57);
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>(i * 7 % 300);
    }
    Guarded on_device(ids);
    Guarded out(ids.size() * static_cast<size_t>(width) * sizeof(float));
    ASSERT_TRUE(Embed(launcher_, nullptr, GetParam(),
                      {encoded.data(), on_device.as<int32_t>(), out.as<float>(), 57, width})
                    .ok());
    for (size_t i = 0; i < out.bytes() / 4; ++i) {
      ASSERT_EQ(out.as<float>()[i],
                table[static_cast<size_t>(ids[i / static_cast<size_t>(width)] * width) +
                      i % static_cast<size_t>(width)]);
    }
  }
}

TEST_P(CudaRowsTest, RowsGoToTheExchangeAndComeBack) {
  constexpr int32_t kStride = 96;
  const auto values = RandomExact(10 * kStride);
  const std::vector<int32_t> ids = {7, 2, 0};
  Guarded qkv(values);
  Guarded row_ids(ids);
  const size_t element = compute_.element();
  Guarded q(3 * 32 * element);
  Guarded k(3 * 16 * element);
  Guarded v(3 * 16 * element);
  SendRowsParams send{qkv.as<float>(),
                      row_ids.as<int32_t>(),
                      q.data(),
                      k.data(),
                      v.data(),
                      3,
                      kStride,
                      16,
                      64,
                      80,
                      32,
                      16,
                      32,
                      16};
  ASSERT_TRUE(SendRows(launcher_, nullptr, GetParam(), send).ok());
  const auto got_q = compute_.Decode(q);
  const auto got_k = compute_.Decode(k);
  const auto got_v = compute_.Decode(v);
  for (size_t row = 0; row < 3; ++row) {
    const auto from = static_cast<size_t>(ids[row]) * kStride;
    for (size_t i = 0; i < 32; ++i) {
      EXPECT_EQ(got_q[row * 32 + i], values[from + 16 + i]);
    }
    for (size_t i = 0; i < 16; ++i) {
      EXPECT_EQ(got_k[row * 16 + i], values[from + 64 + i]);
      EXPECT_EQ(got_v[row * 16 + i], values[from + 80 + i]);
    }
  }
  Guarded out = compute_.Encode(std::vector<float>(10 * 48, 0.5f));
  ASSERT_TRUE(JoinRows(launcher_, nullptr, GetParam(),
                       {q.data(), row_ids.as<int32_t>(), out.data(), 3, 32, 48, 16, 32})
                  .ok());
  const auto got = compute_.Decode(out);
  for (size_t row = 0; row < 10; ++row) {
    const auto found = std::find(ids.begin(), ids.end(), static_cast<int32_t>(row));
    for (size_t i = 0; i < 48; ++i) {
      const bool is_joined = found != ids.end() && i >= 16;
      const auto at = static_cast<size_t>(found - ids.begin()) * 32 + i - 16;
      EXPECT_EQ(got[row * 48 + i], is_joined ? got_q[at] : 0.5f) << row << " " << i;
    }
  }
}

TANDEM_FOR_COMPUTE_TYPES(CudaRowsTest);

void ExpectRotated(const RopeParams& params, const std::vector<float>& before,
                   const std::vector<int32_t>& positions) {
  const int32_t half = params.head_dim / 2;
  const int32_t heads = params.num_q_heads + 2 * params.num_kv_heads;
  for (int32_t row = 0; row < params.rows; ++row) {
    for (int32_t head = 0; head < heads; ++head) {
      const int64_t at = (int64_t{row} * heads + head) * params.head_dim;
      std::vector<double> x(before.begin() + at, before.begin() + at + params.head_dim);
      const float* got = params.qkv + at;
      if (head >= params.num_q_heads + params.num_kv_heads) {
        for (size_t d = 0; d < x.size(); ++d) {
          ASSERT_EQ(got[d], static_cast<float>(x[d]));  // V stays
        }
        continue;
      }
      const float* norm = head < params.num_q_heads ? params.q_norm : params.k_norm;
      double sum = 0;
      for (const double value : x) {
        sum += value * value;
      }
      for (size_t d = 0; d < x.size() && norm != nullptr; ++d) {
        x[d] *= norm[d] / std::sqrt(sum / params.head_dim + double{params.eps});
      }
      for (int32_t d = 0; d < half; ++d) {
        const auto i = static_cast<size_t>(d);
        const auto j = static_cast<size_t>(d + half);
        const double c = params.cos[positions[static_cast<size_t>(row)] * half + d];
        const double s = params.sin[positions[static_cast<size_t>(row)] * half + d];
        ASSERT_NEAR(got[d], x[i] * c - x[j] * s, 2e-5);
        ASSERT_NEAR(got[d + half], x[j] * c + x[i] * s, 2e-5);
      }
    }
  }
}

TEST(CudaRopeTest, RotatesHalvesAndNormalisesHeads) {
  std::mt19937 random(5);
  ShimLauncher launcher;
  for (const int32_t head_dim : {16, 48, 128, 256}) {
    const auto half = static_cast<size_t>(head_dim) / 2;
    const std::vector<int32_t> positions = {0, 9, 4, 9, 1};
    Guarded on_device(positions);
    Guarded cos(RandomFloats(random, 10 * half));
    Guarded sin(RandomFloats(random, 10 * half));
    Guarded q_norm(RandomFloats(random, 2 * half));
    Guarded k_norm(RandomFloats(random, 2 * half));
    for (const bool norm : {false, true}) {
      const auto before =
          RandomFloats(random, positions.size() * static_cast<size_t>(7 * head_dim));
      Guarded qkv(before);
      RopeParams params{qkv.as<float>(), on_device.as<int32_t>(), cos.as<float>(), sin.as<float>()};
      params.q_norm = norm ? q_norm.as<float>() : nullptr;
      params.k_norm = norm ? k_norm.as<float>() : nullptr;
      params.eps = 1e-6f;
      params.rows = static_cast<int32_t>(positions.size());
      params.num_q_heads = 3;
      params.num_kv_heads = 2;
      params.head_dim = head_dim;
      ASSERT_TRUE(Rope(launcher, nullptr, params).ok());
      ExpectRotated(params, before, positions);
    }
  }
}

TEST(CudaAddBiasTest, AddsToEachRow) {
  std::mt19937 random(6);
  ShimLauncher launcher;
  const auto before = RandomFloats(random, 4 * 300);
  const auto bias = RandomFloats(random, 300);
  Guarded out(before);
  Guarded on_device(bias);
  ASSERT_TRUE(AddBias(launcher, nullptr, {out.as<float>(), on_device.as<float>(), 4, 300}).ok());
  for (size_t i = 0; i < before.size(); ++i) {
    ASSERT_EQ(out.as<float>()[i], before[i] + bias[i % 300]);
  }
}

TEST(CudaArgmaxTest, TakesTheLowestIdOfATieAndPassesOverNan) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr int32_t kVocab = 3000;
  ShimLauncher launcher;
  std::vector<float> logits(5 * kVocab, 1.0f);
  logits[2999] = logits[37] = logits[2100] = 2.0f;
  logits[kVocab + 5] = kNan;
  logits[kVocab + 700] = -kInfinity;
  logits[kVocab + 2900] = kInfinity;
  std::fill_n(logits.begin() + 2 * kVocab, kVocab, kNan);
  std::fill_n(logits.begin() + 3 * kVocab, kVocab, -kInfinity);
  std::fill_n(logits.begin() + 4 * kVocab, kVocab, -5.0f);
  logits[4 * kVocab + 1] = -4.0f;
  Guarded on_device(logits);
  Guarded tokens(5 * sizeof(int32_t));
  ASSERT_TRUE(
      Argmax(launcher, nullptr, {on_device.as<float>(), tokens.as<int32_t>(), 5, kVocab}).ok());
  const std::vector<int32_t> expected = {37, 2900, 0, 0, 1};
  for (size_t i = 0; i < expected.size(); ++i) {
    EXPECT_EQ(tokens.as<int32_t>()[i], expected[i]) << i;
  }
}

TEST(CudaWordsTest, AWaitEndsAtItsValueOrAnyLaterOne) {
  ShimLauncher launcher;
  uint32_t word = 0;
  ASSERT_TRUE(SignalWord(launcher, nullptr, {&word, 0xfffffffeu}).ok());
  EXPECT_EQ(word, 0xfffffffeu);
  ASSERT_TRUE(WaitWord(launcher, nullptr, {&word, 0xfffffffdu}).ok());
  word = 3;  // past the wrap
  ASSERT_TRUE(WaitWord(launcher, nullptr, {&word, 0xfffffffeu}).ok());
}

TEST(CudaLimitsTest, WhatKernelsCannotDoIsRefusedByName) {
  ShimLauncher launcher;
  RopeParams rope;
  rope.rows = 1;
  rope.num_q_heads = 1;
  rope.head_dim = 258;
  EXPECT_NE(Rope(launcher, nullptr, rope).message().find("head_dim"), std::string::npos);
  JoinRowsParams join;
  join.num_rows = 1;
  join.from_width = 12;
  EXPECT_NE(JoinRows(launcher, nullptr, ElementType::kBFloat16, join).message().find("from_width"),
            std::string::npos);
  EmbedParams embed;
  embed.rows = embed.width = 1;
  EXPECT_FALSE(Embed(launcher, nullptr, ElementType::kInt8, embed).ok());
  EXPECT_TRUE(launcher.launched().empty());
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
