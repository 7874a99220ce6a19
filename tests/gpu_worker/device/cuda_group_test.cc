#include "gpu_worker/device/cuda/cuda_group.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

// On the driver and the NCCL that the loader finds: by ctest fakes with two devices.
namespace tandem::gpu_worker::device {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr int64_t kTimeoutUs = 20'000'000;

// A device of the group with a stream and some floats.
struct Rank {
  std::unique_ptr<CudaDevice> device;
  std::unique_ptr<Stream> stream;
  std::unique_ptr<Buffer> data;
  std::unique_ptr<Buffer> gathered;
  std::unique_ptr<Buffer> host;
};

class CudaGroupTest : public testing::Test {
 protected:
  static constexpr size_t kFloats = 8;

  void SetUp() override {
    auto group = CudaGroup::Create(2);
    ASSERT_TRUE(group.ok()) << group.status();
    for (int32_t rank = 0; rank < 2; ++rank) {
      Rank& made = ranks_[rank];
      made.device = (*group)->TakeDevice(rank);
      made.stream = made.device->CreateComputeStream();
      made.data = made.device->Allocate(kFloats * sizeof(float), "data").value();
      made.gathered = made.device->Allocate(kFloats * sizeof(float), "data").value();
      made.host = made.device->AllocateHost(kFloats * sizeof(float), "data").value();
    }
    group_ = *std::move(group);
  }
  void Fill(int32_t rank, const std::vector<float>& values) {
    ASSERT_TRUE(
        ranks_[rank]
            .device->Upload(ranks_[rank].data->data(), values.data(), values.size() * sizeof(float))
            .ok());
  }
  std::vector<float> Read(int32_t rank, const Buffer& buffer) {
    Rank& from = ranks_[rank];
    from.stream->CopyToHost(from.host->data(), buffer.data(), kFloats * sizeof(float));
    EXPECT_TRUE(from.stream->Synchronize(kTimeoutUs).ok());
    return {from.host->as<float>(), from.host->as<float>() + kFloats};
  }

  Rank ranks_[2];
  std::unique_ptr<CudaGroup> group_;  // ends before the devices do
};

TEST_F(CudaGroupTest, SumsAreOnAllDevices) {
  Fill(0, {1, 2, 3, 4, 5, 6, 7, 8});
  Fill(1, {10, 20, 30, 40, 50, 60, 70, 80});
  for (const int32_t rank : {1, 0}) {
    for (int time = 0; time < 2; ++time) {
      group_->communicator(rank).AllReduceSum(*ranks_[rank].stream, ranks_[rank].data->as<float>(),
                                              3);
    }
  }
  EXPECT_THAT(Read(0, *ranks_[0].data), ElementsAre(22, 44, 66, 4, 5, 6, 7, 8));
  EXPECT_THAT(Read(1, *ranks_[1].data), ElementsAre(22, 44, 66, 40, 50, 60, 70, 80));
  EXPECT_TRUE(group_->Health().ok());
}

TEST_F(CudaGroupTest, RowsAreGatheredRankByRank) {
  Fill(0, {1, 2, 3, 4, 0, 0, 0, 0});
  Fill(1, {5, 6, 7, 8, 0, 0, 0, 0});
  for (const int32_t rank : {0, 1}) {
    group_->communicator(rank).AllGatherRows(*ranks_[rank].stream, ranks_[rank].data->as<float>(),
                                             2, 2, ranks_[rank].gathered->as<float>());
  }
  for (const int32_t rank : {0, 1}) {
    EXPECT_THAT(Read(rank, *ranks_[rank].gathered), ElementsAre(1, 2, 5, 6, 3, 4, 7, 8));
  }
}

TEST_F(CudaGroupTest, AnAbortFreesWhoWaitsForTheOther) {
  group_->communicator(0).AllReduceSum(*ranks_[0].stream, ranks_[0].data->as<float>(), 1);
  EXPECT_TRUE(absl::IsDeadlineExceeded(ranks_[0].stream->Synchronize(20'000)));
  group_->Abort(absl::InternalError("the other one failed"));
  group_->Abort(absl::InternalError("again"));
  EXPECT_TRUE(ranks_[0].stream->Synchronize(kTimeoutUs).ok());
  EXPECT_EQ(group_->Health().message(), "the other one failed");
  group_->communicator(1).AllReduceSum(*ranks_[1].stream, ranks_[1].data->as<float>(), 1);
  EXPECT_EQ(ranks_[1].stream->Synchronize(kTimeoutUs).message(), "the other one failed");
}

TEST_F(CudaGroupTest, MemoryOfAnotherDeviceIsRefused) {
  group_->communicator(0).AllReduceSum(*ranks_[0].stream, ranks_[1].data->as<float>(), 1);
  const absl::Status refused = ranks_[0].stream->Synchronize(kTimeoutUs);
  EXPECT_THAT(std::string(refused.message()), HasSubstr("ncclAllReduce: NCCL: "));
  EXPECT_FALSE(group_->Health().ok());
}

TEST_F(CudaGroupTest, CallsThatDifferAreAnErrorOfTheGroup) {
  group_->communicator(0).AllReduceSum(*ranks_[0].stream, ranks_[0].data->as<float>(), 1);
  group_->communicator(1).AllReduceSum(*ranks_[1].stream, ranks_[1].data->as<float>(), 2);
  EXPECT_TRUE(ranks_[0].stream->Synchronize(kTimeoutUs).ok());
  EXPECT_TRUE(ranks_[1].stream->Synchronize(kTimeoutUs).ok());
  EXPECT_THAT(std::string(group_->Health().message()), HasSubstr("fake ranks differ"));
}

}  // namespace
}  // namespace tandem::gpu_worker::device
