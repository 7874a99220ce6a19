// The fake itself, against attention in float64 written out here.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "tests/common/exchange/test_geometry.h"
#include "tests/fakes/fake_cpu_attention_worker.h"

namespace tandem::exchange {
namespace {

constexpr int64_t kTimeoutUs = 20'000'000;

// One sequence that grows token by token; every layer sees the same values.
TEST(FakeCpuAttentionWorkerTest, AttendsToEveryStoredToken) {
  std::unique_ptr<DeviceSide> device = DeviceSide::Create(SmallGeometry()).value();
  fakes::FakeCpuAttentionWorker worker(device.get());
  std::mt19937_64 random(3);
  std::normal_distribution<float> normal;
  const std::vector<int32_t> table = {5, 2};
  std::vector<std::vector<float>> ks;
  std::vector<std::vector<float>> vs;
  for (int32_t tokens = 1; tokens <= 140; ++tokens) {
    std::vector<float> q(128), k(64), v(64);
    for (auto* row : {&q, &k, &v}) {
      for (float& x : *row) x = normal(random);
    }
    ks.push_back(k);
    vs.push_back(v);
    const std::vector<SlotRow> rows = {{tokens, table}};
    ASSERT_TRUE(device->BeginStep(static_cast<uint64_t>(tokens), rows, {}, 0.2f, kTimeoutUs).ok());
    for (int32_t layer = 0; layer < 3; ++layer) {
      std::memcpy(device->q(0), q.data(), 512);
      std::memcpy(device->k(0), k.data(), 256);
      std::memcpy(device->v(0), v.data(), 256);
      device->Post(0, layer);
      ASSERT_EQ(device->WaitDone(0, layer, kTimeoutUs), WaitResult::kDone);
    }
    const auto* o = reinterpret_cast<const float*>(device->o(0));
    for (size_t head = 0; head < 4; ++head) {
      std::vector<double> want(32, 0.0);
      double total = 0.0;
      for (size_t t = 0; t < ks.size(); ++t) {
        double score = 0.0;
        for (size_t d = 0; d < 32; ++d) {
          score += double{q[head * 32 + d]} * double{ks[t][head / 2 * 32 + d]};
        }
        const double p = std::exp(score * double{0.2f});
        total += p;
        for (size_t d = 0; d < 32; ++d) want[d] += p * double{vs[t][head / 2 * 32 + d]};
      }
      for (size_t d = 0; d < 32; ++d) {
        ASSERT_NEAR(o[head * 32 + d], want[d] / total, 1e-5) << tokens << " " << head << " " << d;
      }
    }
  }
  EXPECT_EQ(worker.steps(), 140u);
}

TEST(FakeCpuAttentionWorkerTest, DiesWhereItIsTold) {
  std::unique_ptr<DeviceSide> device = DeviceSide::Create(SmallGeometry()).value();
  fakes::FakeCpuAttentionWorker worker(device.get());
  worker.DieAtLayer(1);
  const std::vector<int32_t> table = {5};
  const std::vector<SlotRow> rows = {{1, table}};
  ASSERT_TRUE(device->BeginStep(1, rows, {}, 0.2f, kTimeoutUs).ok());
  device->Post(0, 0);
  ASSERT_EQ(device->WaitDone(0, 0, kTimeoutUs), WaitResult::kDone);
  device->Post(0, 1);
  EXPECT_EQ(device->WaitDone(0, 1, 50'000), WaitResult::kTimedOut);
  device->Release();
  EXPECT_EQ(device->WaitDone(0, 1, kTimeoutUs), WaitResult::kReleased);
}

}  // namespace
}  // namespace tandem::exchange
