#include "gpu_worker/model/tensor_parallel.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/model/decoder.h"
#include "tests/gpu_worker/model/memory_model.h"

namespace tandem::gpu_worker::model {
namespace {

constexpr std::chrono::seconds kTimeout{20};

TEST(TensorParallelShapeTest, FieldsThatDevicesCannotShareOutAreNamed) {
  ModelShape shape = SmallShape(false);
  shape.num_q_heads = 12;
  shape.num_kv_heads = 6;
  shape.intermediate_size = 96;
  shape.vocab_size = 600;
  EXPECT_TRUE(CheckTensorParallel(shape, 1).ok());
  EXPECT_TRUE(CheckTensorParallel(shape, 2).ok());
  EXPECT_TRUE(CheckTensorParallel(shape, 6).ok());
  const auto refused = [&](int32_t size) {
    return std::string(CheckTensorParallel(shape, size).message());
  };
  EXPECT_THAT(refused(5), testing::HasSubstr("num_attention_heads of 12"));
  EXPECT_THAT(refused(4), testing::HasSubstr("num_key_value_heads of 6"));
  EXPECT_THAT(refused(17), testing::HasSubstr("--tensor-parallel-size: 17"));
  shape.intermediate_size = 80;
  EXPECT_THAT(refused(2), testing::HasSubstr("intermediate_size of 80"));
  shape.intermediate_size = 96;
  shape.vocab_size = 601;
  EXPECT_THAT(refused(2), testing::HasSubstr("vocab_size of 601"));
}

// What two streams of the host put together.
class Meeting {
 public:
  // The ranks' data of a call, in turn; each call meets those of the other rank in their order.
  absl::Status Meet(int32_t rank, std::vector<float> mine,
                    const std::function<void(const std::vector<float>*)>& use) {
    std::unique_lock lock(mutex_);
    parts_[rank] = std::move(mine);
    const uint64_t round = round_;
    if (++arrived_ == 2) {
      arrived_ = 0;
      ++round_;
      for (int i = 0; i < 2; ++i) {
        shared_[i] = parts_[i];
      }
      changed_.notify_all();
    } else if (!changed_.wait_for(lock, kTimeout, [&] { return round_ != round; })) {
      return absl::DeadlineExceededError("the other rank did not come");
    }
    use(shared_);
    return absl::OkStatus();
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<float> parts_[2];
  std::vector<float> shared_[2];  // of the newest round: both left the one before
  int arrived_ = 0;
  uint64_t round_ = 0;
};

class HostCommunicator : public device::Communicator {
 public:
  HostCommunicator(Meeting* meeting, int32_t rank) : meeting_(meeting), rank_(rank) {}
  int32_t rank() const override { return rank_; }
  int32_t size() const override { return 2; }
  void AllReduceSum(device::Stream& stream, float* data, int64_t count) override {
    stream.Launch([this, data, count] {
      return meeting_->Meet(rank_, {data, data + count}, [&](const std::vector<float>* parts) {
        std::transform(parts[0].begin(), parts[0].end(), parts[1].begin(), data, std::plus<>());
      });
    });
  }
  void AllGatherRows(device::Stream& stream, const float* in, int64_t rows, int64_t width,
                     float* out) override {
    stream.Launch([this, in, rows, width, out] {
      return meeting_->Meet(rank_, {in, in + rows * width}, [&](const std::vector<float>* parts) {
        for (int64_t row = 0; row < rows; ++row) {
          for (int64_t part = 0; part < 2; ++part) {
            std::copy_n(parts[part].data() + row * width, width, out + (2 * row + part) * width);
          }
        }
      });
    });
  }

 private:
  Meeting* meeting_;
  int32_t rank_;
};

// A decoder's device and stream.
struct Bench {
  explicit Bench(const model_files::ModelFiles& model, const TensorParallel& parallel) {
    decoder = Decoder::Load(context.get(), model, {32, 64}, parallel).value();
    EXPECT_TRUE(decoder->PreparePositions(64).ok());
  }
  void Sync() { ASSERT_TRUE(stream->Synchronize(30'000'000).ok()); }

  std::unique_ptr<device::Device> device = device::CreateHostDevice({1});
  std::unique_ptr<device::Stream> stream = device->CreateComputeStream();
  std::unique_ptr<ops::OpContext> context =
      ops::OpContext::Create(device.get(), stream.get(), DType::kFloat32).value();
  std::unique_ptr<Decoder> decoder;
};

// Everything but attention, which gives each query head its own q here.
void LaunchStep(Bench& bench, RowRange rows, const std::vector<int32_t>& tokens,
                const std::vector<int32_t>& positions) {
  Decoder& decoder = *bench.decoder;
  decoder.Embed(rows, tokens);
  for (int32_t layer = 0; layer < 2; ++layer) {
    decoder.Pre(layer, rows, positions);
    bench.stream->Launch([&decoder, rows] {
      const ops::QkvRows qkv = decoder.qkv();
      const int64_t width = decoder.shape().q_size();
      for (int64_t row = rows.first; row < rows.first + rows.count; ++row) {
        std::copy_n(qkv.q(row), width,
                    reinterpret_cast<float*>(decoder.attention_out()) + row * width);
      }
      return absl::OkStatus();
    });
    decoder.Post(layer, rows);
  }
}

TEST(TensorParallelDecoderTest, TwoDevicesComputeWhatOneDoes) {
  for (const bool tied : {false, true}) {
    ModelShape shape = SmallShape(tied);
    shape.intermediate_size = 96;
    const MemoryModel model(shape);
    Bench whole(model, {0, 1});
    Bench halves[] = {Bench(model, {0, 2}), Bench(model, {1, 2})};
    Meeting meeting;
    HostCommunicator communicators[] = {{&meeting, 0}, {&meeting, 1}};
    const RowRange rows{4, 3};
    const std::vector<int32_t> tokens = {7, 99, 0};
    const std::vector<int32_t> positions = {0, 5, 63};
    const std::vector<int32_t> last = {6, 4};
    LaunchStep(whole, rows, tokens, positions);
    whole.decoder->Logits(last);
    whole.Sync();
    for (int rank = 0; rank < 2; ++rank) {
      halves[rank].decoder->SetCommunicator(&communicators[rank]);
      LaunchStep(halves[rank], rows, tokens, positions);
      halves[rank].decoder->Logits(last);
    }
    for (Bench& half : halves) {
      half.Sync();
      EXPECT_LT(half.decoder->weights().matrix_bytes,
                whole.decoder->weights().matrix_bytes * 6 / 10);
      for (int64_t i = 4 * shape.hidden_size; i < 7 * shape.hidden_size; ++i) {
        ASSERT_NEAR(half.decoder->hidden()[i], whole.decoder->hidden()[i], 1e-4) << i;
      }
      for (int64_t i = 0; i < 2 * shape.vocab_size; ++i) {
        ASSERT_NEAR(half.decoder->logits()[i], whole.decoder->logits()[i], 2e-4) << i;
      }
    }
  }
}

}  // namespace
}  // namespace tandem::gpu_worker::model
