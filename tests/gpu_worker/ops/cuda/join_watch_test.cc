#include "gpu_worker/ops/cuda/join_watch.h"

#include <gtest/gtest.h>

#include <memory>
#include <thread>

#include "tests/common/exchange/test_geometry.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int64_t kLongUs = 60'000'000;

class JoinWatchTest : public testing::Test {
 protected:
  JoinWatchTest() {
    exchange::Geometry geometry = exchange::SmallGeometry();
    geometry.device_wakes = 0;
    exchange_ = exchange::DeviceSide::Create(geometry).value();
  }

  std::unique_ptr<exchange::DeviceSide> exchange_;
  JoinWatch watch_;
};

TEST_F(JoinWatchTest, ALayerWithoutAnswerIsReleased) {
  exchange_->Post(1, 0);
  EXPECT_EQ(*PostedWord(*exchange_, 1), 1u);
  watch_.Begin(exchange_.get(), 10'000);
  EXPECT_EQ(exchange_->WaitDone(1, 0, kLongUs), exchange::WaitResult::kReleased);
  EXPECT_TRUE(watch_.End(exchange_.get()));  // after what the watch has begun
  EXPECT_GE(static_cast<int32_t>(*DoneWord(*exchange_, 1) - 2), 0);  // a device's wait ends, too
  EXPECT_FALSE(watch_.End(exchange_.get()));
}

TEST_F(JoinWatchTest, NobodyIsLateWhereNothingIsOwed) {
  watch_.Begin(exchange_.get(), 1);
  EXPECT_EQ(exchange_->WaitDone(0, 0, 50'000), exchange::WaitResult::kTimedOut);
  EXPECT_FALSE(watch_.End(exchange_.get()));
}

TEST_F(JoinWatchTest, AnAnsweredLayerStopsTheClock) {
  exchange_->Post(0, 0);
  watch_.Begin(exchange_.get(), kLongUs);
  watch_.Begin(exchange_.get(), 1);  // is watched already
  EXPECT_EQ(exchange_->WaitDone(0, 0, 20'000), exchange::WaitResult::kTimedOut);
  EXPECT_FALSE(watch_.End(exchange_.get()));
}

}  // namespace
}  // namespace tandem::gpu_worker::ops::cuda
