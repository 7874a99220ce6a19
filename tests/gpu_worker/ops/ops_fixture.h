#pragma once

#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <vector>

#include "common/base/bfloat16.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/ops/op.h"
#include "gtest/gtest.h"

namespace tandem::gpu_worker::ops {

inline bool TestsCuda() {
  const char* kind = std::getenv("TANDEM_TEST_DEVICE");
  return kind != nullptr && std::strcmp(kind, "cuda") == 0;
}

// The device that the environment's TANDEM_TEST_DEVICE names: host, or cuda (a GPU, or the fake of
// its driver).
inline std::unique_ptr<device::Device> TestDevice() {
  if (!TestsCuda()) {
    return device::CreateHostDevice({});
  }
  auto device = device::CreateCudaDevice();
  EXPECT_TRUE(device.ok()) << device.status();
  return *std::move(device);
}

// A context on a device, and matrices in its compute dtype. References are computed here in
// double.
class OpsFixture {
 public:
  explicit OpsFixture(DType dtype) : dtype_(dtype) {
    device_ = TestDevice();
    stream_ = device_->CreateComputeStream();
    context_ = OpContext::Create(device_.get(), stream_.get(), dtype).value();
  }

  OpContext& context() { return *context_; }
  device::Device& device() { return *device_; }
  void Sync() {
    const absl::Status status = stream_->Synchronize(60'000'000);
    ASSERT_TRUE(status.ok()) << status;
  }

  std::vector<float> Random(size_t count, float scale = 1.0f) {
    std::normal_distribution<float> normal(0.0f, scale);
    std::vector<float> values(count);
    for (float& value : values) {
      value = normal(random_);
    }
    return values;
  }
  // Values that the compute dtype holds exactly.
  std::vector<float> RandomExact(size_t count, float scale = 1.0f) {
    std::vector<float> values = Random(count, scale);
    if (dtype_ == DType::kBFloat16) {
      for (float& value : values) {
        value = base::BFloat16ToFloat(base::FloatToBFloat16(value));
      }
    }
    return values;
  }
  std::mt19937& random() { return random_; }

  // To and from bytes in the compute dtype, with room for whole row buckets behind.
  std::vector<std::byte> Encode(const std::vector<float>& values, size_t spare = 0) const {
    const auto element = static_cast<size_t>(DTypeBytes(dtype_));
    std::vector<std::byte> bytes((values.size() + spare) * element);
    for (size_t i = 0; i < values.size(); ++i) {
      const uint16_t half = base::FloatToBFloat16(values[i]);
      std::memcpy(bytes.data() + i * element,
                  element == 4 ? static_cast<const void*>(&values[i]) : &half, element);
    }
    return bytes;
  }
  std::vector<float> Decode(const std::vector<std::byte>& bytes) const {
    const auto element = static_cast<size_t>(DTypeBytes(dtype_));
    std::vector<float> values(bytes.size() / element);
    for (size_t i = 0; i < values.size(); ++i) {
      uint16_t half = 0;
      std::memcpy(element == 4 ? static_cast<void*>(&values[i]) : &half, bytes.data() + i * element,
                  element);
      if (element == 2) {
        values[i] = base::BFloat16ToFloat(half);
      }
    }
    return values;
  }
  // Relative error that rounding results to the compute dtype leaves.
  double tolerance() const { return dtype_ == DType::kFloat32 ? 2e-6 : 5e-3; }

 private:
  DType dtype_;
  std::mt19937 random_{7};
  std::unique_ptr<device::Device> device_;
  std::unique_ptr<device::Stream> stream_;
  std::unique_ptr<OpContext> context_;
};

// An operand in the device's memory.
template <typename T>
class OnDevice {
 public:
  OnDevice(OpsFixture& fixture, const std::vector<T>& values)
      : fixture_(fixture), size_(values.size()) {
    buffer_ = fixture.device().Allocate(size_ * sizeof(T), "an operand").value();
    const absl::Status copied =
        fixture.device().Upload(buffer_->data(), values.data(), size_ * sizeof(T));
    EXPECT_TRUE(copied.ok()) << copied;
  }
  OnDevice(OpsFixture& fixture, size_t size) : OnDevice(fixture, std::vector<T>(size)) {}

  T* data() const { return buffer_->as<T>(); }
  // Once everything that was queued has run.
  std::vector<T> Read() const {
    const size_t bytes = size_ * sizeof(T);
    const auto pinned = fixture_.device().AllocateHost(bytes, "an operand's copy").value();
    if (pinned != nullptr) {
      fixture_.context().stream().CopyToHost(pinned->data(), buffer_->data(), bytes);
    }
    fixture_.Sync();
    std::vector<T> values(size_);
    std::memcpy(values.data(), pinned != nullptr ? pinned->data() : buffer_->data(), bytes);
    return values;
  }

 private:
  OpsFixture& fixture_;
  size_t size_;
  std::unique_ptr<device::Buffer> buffer_;
};

// Both compute dtypes, where the machine has them.
class OpsTest : public testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (GetParam() == DType::kBFloat16 && !TestsCuda() && !HostRunsBFloat16()) {
      GTEST_SKIP() << "this machine multiplies no bfloat16 matrices";
    }
    fixture_ = std::make_unique<OpsFixture>(GetParam());
  }
  OpsFixture& f() { return *fixture_; }

 private:
  std::unique_ptr<OpsFixture> fixture_;
};

inline std::string DTypeOf(const testing::TestParamInfo<DType>& info) {
  return DTypeName(info.param);
}

}  // namespace tandem::gpu_worker::ops
