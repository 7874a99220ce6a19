#include "gpu_worker/ops/cuda.h"

#include <algorithm>
#include <limits>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda/images.h"

namespace tandem::gpu_worker::ops::cuda {
namespace {

constexpr int64_t kSyncTimeoutUs = 60'000'000;

bool SameRuns(std::span<const RowRun> a, std::span<const RowRun> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(),
                    [](const RowRun& left, const RowRun& right) {
                      return left.first_row == right.first_row && left.num_rows == right.num_rows &&
                             left.start_position == right.start_position &&
                             left.block_table.data() == right.block_table.data() &&
                             left.block_table.size() == right.block_table.size();
                    });
}

}  // namespace

ElementType ElementTypeOf(DType dtype) {
  switch (dtype) {
    case DType::kBFloat16:
      return ElementType::kBFloat16;
    case DType::kFloat16:
      return ElementType::kFloat16;
    case DType::kInt8:
      return ElementType::kInt8;
    case DType::kFloat8E4M3:
      return ElementType::kFloat8E4M3;
    default:
      return ElementType::kFloat32;
  }
}

DriverLauncher::DriverLauncher(device::CudaDevice* device)
    : device_(device),
      traits_{device->traits().num_multiprocessors, device->traits().compute_capability,
              device->traits().max_shared_bytes_per_block} {}

absl::Status DriverLauncher::Launch(const char* kernel, const LaunchShape& shape,
                                    StreamHandle stream, const void* params,
                                    size_t /*params_bytes*/) {
  device::KernelLaunch launch;
  launch.name = kernel;
  std::copy_n(shape.grid, 3, launch.grid);
  std::copy_n(shape.block, 3, launch.block);
  launch.shared_bytes = shape.shared_bytes;
  return device_->LaunchKernel(launch, stream, params);
}

std::vector<RunParams> RunEntries(std::span<const RowRun> runs, std::vector<int32_t>& tables) {
  std::vector<RunParams> entries;
  int32_t rows = 0;
  for (const RowRun& run : runs) {
    entries.push_back({run.first_row, run.num_rows, run.start_position,
                       static_cast<int32_t>(tables.size()), rows});
    tables.insert(tables.end(), run.block_table.begin(), run.block_table.end());
    rows += run.num_rows;
  }
  return entries;
}

void StepTables::Refresh(const device::CudaStream& stream) {
  if (!is_pinned_ && generation_ != stream.generation()) {
    generation_ = stream.generation();
    ids_.clear();
    runs_.clear();
  }
}

void StepTables::Pin(std::span<const int32_t> ids, const int32_t* device) {
  is_pinned_ = true;
  ids_[ids.data()] = {{ids.begin(), ids.end()}, device};
}

void StepTables::Pin(std::span<const RowRun> runs, const RunsParams& params) {
  is_pinned_ = true;
  runs_[runs.data()] = {{runs.begin(), runs.end()}, params};
}

const int32_t* StepTables::Ids(device::CudaStream& stream, std::span<const int32_t> ids) {
  if (ids.empty()) {
    return nullptr;
  }
  Refresh(stream);
  IdsCopy& copy = ids_[ids.data()];
  if (!std::equal(ids.begin(), ids.end(), copy.ids.begin(), copy.ids.end())) {
    copy.ids.assign(ids.begin(), ids.end());
    copy.device = reinterpret_cast<const int32_t*>(stream.Upload(ids.data(), ids.size_bytes()));
  }
  return copy.device;
}

RunsParams StepTables::Runs(device::CudaStream& stream, std::span<const RowRun> runs) {
  if (runs.empty()) {
    return {};
  }
  Refresh(stream);
  RunsCopy& copy = runs_[runs.data()];
  if (SameRuns(copy.runs, runs)) {
    return copy.params;
  }
  copy.runs.assign(runs.begin(), runs.end());
  std::vector<int32_t> tables;
  std::vector<RunParams> entries = RunEntries(runs, tables);
  RunsParams params;
  for (const RowRun& run : runs) {
    params.total_rows += run.num_rows;
    params.max_rows = std::max(params.max_rows, run.num_rows);
    params.max_context = std::max(params.max_context, run.start_position + run.num_rows);
  }
  params.num_runs = static_cast<int32_t>(runs.size());
  params.runs = reinterpret_cast<const RunParams*>(
      stream.Upload(entries.data(), entries.size() * sizeof(RunParams)));
  params.tables = reinterpret_cast<const int32_t*>(
      stream.Upload(tables.data(), tables.size() * sizeof(int32_t)));
  copy.params = params;
  return params;
}

absl::StatusOr<std::byte*> WeightStaging::Next(device::Device& device, size_t bytes,
                                               int64_t timeout_us) {
  Part& part = parts_[next_];
  if (part.sent == nullptr) {
    part.sent = device.CreateEvent();
  }
  TANDEM_RETURN_IF_ERROR(part.sent->Wait(timeout_us));
  if (part.memory == nullptr || part.memory->bytes() < bytes) {
    TANDEM_ASSIGN_OR_RETURN(
        part.memory, device.AllocateHost(std::max(bytes, kBytes), "pinned memory for the weights"));
  }
  return part.memory->data();
}

void WeightStaging::Sent(device::Stream& stream) {
  stream.Record(*parts_[next_].sent);
  next_ = 1 - next_;
}

void WeightStaging::Free() {
  for (Part& part : parts_) {
    part = {};
  }
}

absl::StatusOr<std::unique_ptr<OpState>> OpState::Create(device::CudaDevice* device) {
  for (const std::span<const std::byte> image : KernelImages()) {
    TANDEM_RETURN_IF_ERROR(device->LoadKernels(image));
  }
  std::unique_ptr<OpState> state(new OpState(device));
  TANDEM_ASSIGN_OR_RETURN(state->matmul_, device::CudaMatmul::Create(*device));
  return state;
}

absl::Status OpState::PrepareSequenceCopies(uint64_t bytes) {
  TANDEM_ASSIGN_OR_RETURN(sequence_copies_,
                          device_->Allocate(bytes, "the staging area of moved sequences"));
  return absl::OkStatus();
}

std::span<std::byte> OpState::SequenceCopies(bool to_host) const {
  const size_t half = sequence_copies_->bytes() / 2;
  return {sequence_copies_->data() + (to_host ? 0 : half), half};
}

absl::StatusOr<std::span<float>> OpState::DecodeScratch(device::CudaStream& stream,
                                                        int64_t floats) {
  if (floats == 0) {
    return std::span<float>();
  }
  const size_t bytes = static_cast<size_t>(floats) * sizeof(float);
  if (decode_scratch_ == nullptr || decode_scratch_->bytes() < bytes) {
    TANDEM_RETURN_IF_ERROR(stream.Synchronize(kSyncTimeoutUs));
    decode_scratch_.reset();
    TANDEM_ASSIGN_OR_RETURN(decode_scratch_,
                            device_->Allocate(bytes, "the scratch memory of decode attention"));
  }
  return std::span(decode_scratch_->as<float>(), static_cast<size_t>(floats));
}

}  // namespace tandem::gpu_worker::ops::cuda
