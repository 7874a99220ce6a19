#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <vector>

#include "common/model_shape/model_shape.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/cuda/cuda_matmul.h"
#include "gpu_worker/ops/attention.h"
#include "gpu_worker/ops/cuda/join_watch.h"
#include "gpu_worker/ops/cuda/kernels.h"
#include "gpu_worker/ops/op.h"

// What the CUDA variants of the operators share. They queue kernels (ops/cuda/kernels.h) and
// cuBLASLt products; small tables that their arguments point to are uploaded in stream order, each
// once per step. Their errors stay with the stream.
namespace tandem::gpu_worker::ops::cuda {

inline bool IsCuda(const OpContext& context) {
  return context.device().kind() == device::DeviceKind::kCuda;
}

inline device::CudaStream& AsCuda(device::Stream& stream) {
  return static_cast<device::CudaStream&>(stream);
}

ElementType ElementTypeOf(DType dtype);

// Finds kernels in the images that this build has, and queues them by the driver.
class DriverLauncher : public KernelLauncher {
 public:
  explicit DriverLauncher(device::CudaDevice* device);
  const DeviceTraits& traits() const override { return traits_; }
  absl::Status Launch(const char* kernel, const LaunchShape& shape, StreamHandle stream,
                      const void* params, size_t params_bytes) override;

 private:
  device::CudaDevice* device_;
  DeviceTraits traits_;
};

// The runs as kernels read them; appends their block tables to `tables`.
std::vector<RunParams> RunEntries(std::span<const RowRun> runs, std::vector<int32_t>& tables);

// Tables of the running step on one stream, so that the operators of each layer share them.
class StepTables {
 public:
  // Device copies; null or empty after an error, which is the stream's.
  const int32_t* Ids(device::CudaStream& stream, std::span<const int32_t> ids);
  RunsParams Runs(device::CudaStream& stream, std::span<const RowRun> runs);
  // These stand at places of their own, for good: of graphs, whose tables are none of the above's.
  void Pin(std::span<const int32_t> ids, const int32_t* device);
  void Pin(std::span<const RowRun> runs, const RunsParams& params);

 private:
  struct IdsCopy {
    std::vector<int32_t> ids;
    const int32_t* device = nullptr;
  };
  struct RunsCopy {
    std::vector<RowRun> runs;
    RunsParams params;
  };
  void Refresh(const device::CudaStream& stream);

  bool is_pinned_ = false;
  uint64_t generation_ = 0;
  std::map<const void*, IdsCopy> ids_;
  std::map<const void*, RunsCopy> runs_;
};

// Two pinned buffers in turn: one is filled while the other is on its way to the device.
class WeightStaging {
 public:
  static constexpr size_t kBytes = size_t{32} << 20;
  // Memory of at least `bytes`, whose last copy is done. DeadlineExceeded after `timeout_us`.
  absl::StatusOr<std::byte*> Next(device::Device& device, size_t bytes, int64_t timeout_us);
  // The copy from what Next gave was queued on `stream`.
  void Sent(device::Stream& stream);
  // The copies are done; gives the memory back.
  void Free();

 private:
  struct Part {
    std::unique_ptr<device::Buffer> memory;
    std::unique_ptr<device::Event> sent;
  };
  Part parts_[2];
  size_t next_ = 0;
};

// One per context; used by the thread that queues operators.
class OpState {
 public:
  static absl::StatusOr<std::unique_ptr<OpState>> Create(device::CudaDevice* device);

  device::CudaDevice& device() { return *device_; }
  DriverLauncher& launcher() { return launcher_; }
  device::CudaMatmul& matmul() { return *matmul_; }
  StepTables& tables(const device::Stream& stream) {
    return pinned_tables_ != nullptr ? *pinned_tables_ : tables_[&stream];
  }
  // Instead of every stream's own; null: no longer.
  void UseTables(StepTables* pinned) { pinned_tables_ = pinned; }
  JoinWatch& joins() { return joins_; }
  WeightStaging& weight_staging() { return weight_staging_; }
  // Scratch of decode attention on the compute stream; grows while no work uses it. Null after an
  // error.
  absl::StatusOr<std::span<float>> DecodeScratch(device::CudaStream& stream, int64_t floats);
  // Device memory through which sequences move between the tiers, half of it for each direction.
  absl::Status PrepareSequenceCopies(uint64_t bytes);
  std::span<std::byte> SequenceCopies(bool to_host) const;

 private:
  explicit OpState(device::CudaDevice* device) : device_(device), launcher_(device) {}

  device::CudaDevice* device_;
  DriverLauncher launcher_;
  std::unique_ptr<device::CudaMatmul> matmul_;
  std::map<const device::Stream*, StepTables> tables_;
  StepTables* pinned_tables_ = nullptr;
  std::unique_ptr<device::Buffer> decode_scratch_;
  std::unique_ptr<device::Buffer> sequence_copies_;
  JoinWatch joins_;
  WeightStaging weight_staging_;
};

}  // namespace tandem::gpu_worker::ops::cuda
