#pragma once

#include <cstdint>
#include <cstring>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "common/base/bfloat16.h"
#include "common/model_shape/model_shape.h"
#include "gpu_worker/ops/cuda/kernels.h"
#include "gtest/gtest.h"
#include "tests/fakes/cuda/shim/block.h"
#include "tests/fakes/cuda/shim/grid.h"

// Runs launched kernels at once, on the CPU. What they do wrong fails the test.
namespace tandem::gpu_worker::ops::cuda {

class ShimLauncher final : public KernelLauncher {
 public:
  explicit ShimLauncher(int32_t compute_capability = 90) {
    traits_.num_multiprocessors = 4;
    traits_.compute_capability = compute_capability;
    traits_.max_shared_bytes_per_block = compute_capability < 80 ? 64 << 10 : 99 << 10;
  }
  const DeviceTraits& traits() const override { return traits_; }
  absl::Status Launch(const char* kernel, const LaunchShape& shape, StreamHandle stream,
                      const void* params, size_t params_bytes) override {
    // Kernels with code of their own for sm_75 are there twice.
    std::string name = kernel;
    if (traits_.compute_capability < 80 && shim::KernelParamsBytes((name + "@sm75").c_str()) > 0) {
      name += "@sm75";
    }
    EXPECT_EQ(shim::KernelParamsBytes(name.c_str()), params_bytes) << name;
    EXPECT_LE(shape.shared_bytes, static_cast<uint32_t>(traits_.max_shared_bytes_per_block));
    launched_.push_back(name);
    if (!shim::RunKernel(name.c_str(), shape.grid, shape.block, shape.shared_bytes, params)) {
      return absl::NotFoundError(name);
    }
    EXPECT_EQ(shim::TakeFaults(), "");
    return absl::OkStatus();
  }
  const std::vector<std::string>& launched() const { return launched_; }

 private:
  DeviceTraits traits_;
  std::vector<std::string> launched_;
};

// Memory with bytes around it that nothing may touch.
class Guarded {
 public:
  explicit Guarded(size_t bytes, uint8_t fill = 0xff) : bytes_(bytes) {
    memory_.resize(bytes + 2 * kGuard, std::byte{kPattern});
    std::memset(data(), fill, bytes);
  }
  template <typename T>
  explicit Guarded(const std::vector<T>& values) : Guarded(values.size() * sizeof(T)) {
    if (!values.empty()) {
      std::memcpy(data(), values.data(), bytes_);
    }
  }
  Guarded(Guarded&&) = default;
  Guarded(const Guarded&) = delete;
  ~Guarded() {
    for (size_t i = 0; i < kGuard && !memory_.empty(); ++i) {
      if (memory_[i] != std::byte{kPattern} ||
          memory_[kGuard + bytes_ + i] != std::byte{kPattern}) {
        ADD_FAILURE() << "a kernel wrote outside of its memory";
        break;
      }
    }
  }
  std::byte* data() { return memory_.data() + kGuard; }
  template <typename T>
  T* as() {
    return reinterpret_cast<T*>(data());
  }
  size_t bytes() const { return bytes_; }

 private:
  static constexpr size_t kGuard = 64;
  static constexpr uint8_t kPattern = 0xc3;
  size_t bytes_;
  std::vector<std::byte> memory_;
};

// Matrices in a compute dtype.
class ComputeType {
 public:
  explicit ComputeType(ElementType type) : type_(type) {}
  ElementType type() const { return type_; }
  size_t element() const { return type_ == ElementType::kFloat32 ? 4 : 2; }
  // Relative error that rounding results leaves.
  double tolerance() const {
    return type_ == ElementType::kFloat32 ? 2e-6 : type_ == ElementType::kFloat16 ? 6e-4 : 5e-3;
  }
  float Rounded(float value) const {
    if (type_ == ElementType::kBFloat16) {
      return base::BFloat16ToFloat(base::FloatToBFloat16(value));
    }
    return type_ == ElementType::kFloat16 ? base::HalfToFloat(shim::HalfOfFloat(value)) : value;
  }
  Guarded Encode(const std::vector<float>& values) const {
    Guarded bytes(values.size() * element());
    for (size_t i = 0; i < values.size(); ++i) {
      if (element() == 4) {
        bytes.as<float>()[i] = values[i];
      } else {
        bytes.as<uint16_t>()[i] = type_ == ElementType::kBFloat16 ? base::FloatToBFloat16(values[i])
                                                                  : shim::HalfOfFloat(values[i]);
      }
    }
    return bytes;
  }
  std::vector<float> Decode(Guarded& bytes) const {
    std::vector<float> values(bytes.bytes() / element());
    for (size_t i = 0; i < values.size(); ++i) {
      values[i] = element() == 4                    ? bytes.as<float>()[i]
                  : type_ == ElementType::kBFloat16 ? base::BFloat16ToFloat(bytes.as<uint16_t>()[i])
                                                    : base::HalfToFloat(bytes.as<uint16_t>()[i]);
    }
    return values;
  }

 private:
  ElementType type_;
};

inline const char* TypeName(ElementType type) {
  constexpr const char* kNames[] = {"float32", "bfloat16", "float16", "int8", "fp8_e4m3"};
  return kNames[static_cast<int>(type)];
}

inline std::vector<float> RandomFloats(std::mt19937& random, size_t count, float scale = 1.0f) {
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<float> values(count);
  for (float& value : values) {
    value = normal(random);
  }
  return values;
}

// Tests of every compute dtype.
class CudaKernelTest : public testing::TestWithParam<ElementType> {
 protected:
  const ComputeType compute_{GetParam()};
  ShimLauncher launcher_;
  std::mt19937 random_{7};

  std::vector<float> Random(size_t count, float scale = 1.0f) {
    return RandomFloats(random_, count, scale);
  }
  // Values that the compute dtype holds exactly.
  std::vector<float> RandomExact(size_t count, float scale = 1.0f) {
    std::vector<float> values = Random(count, scale);
    for (float& value : values) {
      value = compute_.Rounded(value);
    }
    return values;
  }
};

inline std::string TypeOf(const testing::TestParamInfo<ElementType>& info) {
  return TypeName(info.param);
}

#define TANDEM_FOR_COMPUTE_TYPES(Suite)                                                      \
  INSTANTIATE_TEST_SUITE_P(                                                                  \
      Types, Suite,                                                                          \
      testing::Values(ElementType::kFloat32, ElementType::kBFloat16, ElementType::kFloat16), \
      TypeOf)

}  // namespace tandem::gpu_worker::ops::cuda
