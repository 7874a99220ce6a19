#include "gpu_worker/pipeline/pipeline_runner.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/device/paced/paced_device.h"
#include "gpu_worker/pipeline/measure_rates.h"
#include "gpu_worker/pipeline/memory_plan.h"
#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/stage_runner.h"
#include "gpu_worker/pipeline/step_layout.h"
#include "gpu_worker/pipeline/step_trace.h"

namespace tandem::gpu_worker {
namespace {

constexpr std::string_view kPacedPrefix = "paced:";

// Every wait inside a step is bounded, so a step ends; a slow one says that it is there.
constexpr int64_t kSlowStepUs = int64_t{60} * 1'000'000;
constexpr int64_t kAbortTimeoutUs = 2'000'000;  // or the time of a layer, if that is shorter

// Makes the region's first `bytes` bytes reachable for the device, as far as they are not yet.
absl::Status RegisterRegion(PipelineParts& parts, size_t shard, uint64_t bytes) {
  const shm::Region& region = parts.cpu_tier->shards()[shard].exchange->region();
  RegionRegistrations& registered = parts.registrations[shard];
  const uint64_t pages = (std::min(bytes, region.size()) + exchange::kHugePage - 1) /
                         exchange::kHugePage * exchange::kHugePage;
  const uint64_t end = std::min(pages, region.size());
  if (end <= registered.bytes) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(
      std::unique_ptr<device::Registration> part,
      parts.device->Register(region.data() + registered.bytes, end - registered.bytes));
  registered.parts.push_back(std::move(part));
  registered.bytes = end;
  return absl::OkStatus();
}

class StreamPipelineRunner : public PipelineRunner {
 public:
  StreamPipelineRunner(PipelineParts parts, const PipelineOptions& options,
                       std::unique_ptr<StepTracer> tracer)
      : parts_(std::move(parts)), tracer_(std::move(tracer)) {
    limits_.num_gpu_blocks = parts_.sizes.num_gpu_blocks;
    limits_.gpu_block_tokens = options.block_tokens;
    limits_.num_cpu_blocks = parts_.sizes.num_cpu_blocks;
    limits_.cpu_block_tokens = kv::kCpuBlockTokens;
    if (parts_.cpu_tier != nullptr) {
      const CpuShard& shard = parts_.cpu_tier->shards()[0];  // the others have the same rows
      const exchange::Geometry& geometry = shard.exchange->header().geometry;
      limits_.max_cpu_rows_per_slot = static_cast<int32_t>(geometry.max_rows);
      limits_.max_cpu_table_entries_per_slot = static_cast<int64_t>(geometry.max_table_entries);
    }
    limits_.max_batched_tokens = options.max_num_batched_tokens;
    limits_.vocab_size = parts_.decoder->shape().vocab_size;
  }

  const RunnerLimits& limits() const override { return limits_; }
  MeasuredRates MeasureRates() override { return MeasurePipeline(parts_); }
  std::vector<exchange::DeviceSide*> exchanges() override {
    std::vector<exchange::DeviceSide*> exchanges;
    if (parts_.cpu_tier != nullptr) {
      for (const CpuShard& shard : parts_.cpu_tier->shards()) {
        exchanges.push_back(shard.exchange.get());
      }
    }
    return exchanges;
  }

  void SetCpuWorkerUp(size_t worker, bool up) override {
    if (parts_.cpu_tier != nullptr) {
      parts_.cpu_tier->SetUp(worker, up);
    }
  }

  absl::Status PrepareCpuBlocks(size_t worker, int32_t num_blocks) override {
    if (parts_.cpu_tier == nullptr) {
      return absl::OkStatus();
    }
    const CpuShard& shard = parts_.cpu_tier->shards()[worker];
    return RegisterRegion(parts_, worker,
                          shard.exchange->header().pool_offset +
                              static_cast<uint64_t>(num_blocks) * shard.pool.block_bytes());
  }

  absl::Status DeviceHealth() const override {
    return parts_.device->kind() == device::DeviceKind::kCuda
               ? static_cast<const device::CudaDevice&>(*parts_.device).Health()
               : absl::OkStatus();
  }

  std::string device_name() const override { return std::string(parts_.device->name()); }

  absl::StatusOr<StepOutput> Run(const StepInput& input) override {
    const int64_t start_us = base::SystemClock().NowUs();
    TANDEM_ASSIGN_OR_RETURN(const StepLayout layout, BuildStepLayout(input, LayoutLimitsNow()));
    TANDEM_RETURN_IF_ERROR(CheckCpuTier(input, layout));
    TANDEM_RETURN_IF_ERROR(parts_.decoder->PreparePositions(layout.max_position));
    StageRunner runner(parts_, input, layout);
    const absl::Status launched = runner.Launch();
    // Idle before anything is given back: queued work points into this step.
    absl::Status ran = Synchronize();
    ran.Update(launched);
    if (!ran.ok()) {
      return Abort(input.epoch, ran);
    }
    if (runner.began()) {
      parts_.cpu_tier->EndStep();
    }
    StepOutput output = runner.TakeOutput();
    output.timings.total_us = static_cast<double>(base::SystemClock().NowUs() - start_us);
    if (tracer_ != nullptr) {
      Trace(input, layout, runner.Spans(), start_us);
    }
    return output;
  }

 private:
  void Trace(const StepInput& input, const StepLayout& layout, std::vector<TraceSpan> spans,
             int64_t start_us) {
    StepTrace step;
    step.epoch = input.epoch;
    step.mode = StepModeName(input.mode);
    for (int x = 0; x < 2; ++x) {
      step.rows[x] = layout.sub_batch[x].rows.count;
      step.cpu_rows[x] = static_cast<int64_t>(layout.sub_batch[x].cpu_rows.size());
    }
    step.begin_us = static_cast<double>(start_us);
    step.end_us = static_cast<double>(base::SystemClock().NowUs());
    step.spans = std::move(spans);
    tracer_->Add(step);
  }

  LayoutLimits LayoutLimitsNow() const {
    LayoutLimits limits;
    limits.num_layers = parts_.decoder->shape().num_layers;
    limits.max_rows = limits_.max_batched_tokens;
    limits.max_positions = parts_.sizes.max_model_len;
    limits.vocab_size = limits_.vocab_size;
    limits.max_cpu_rows = limits_.max_cpu_rows_per_slot;
    limits.num_gpu_blocks = limits_.num_gpu_blocks;
    limits.gpu_block_tokens = limits_.gpu_block_tokens;
    limits.num_cpu_blocks = limits_.num_cpu_blocks;
    limits.cpu_block_tokens = limits_.cpu_block_tokens;
    limits.staging_table = parts_.staging_table;
    return limits;
  }

  // Whether the CPU worker is there for its rows, and has left the step before, so that CPU blocks
  // may be written.
  absl::Status CheckCpuTier(const StepInput& input, const StepLayout& layout) {
    const bool cpu_rows = layout.program.has_cpu_rows[0] || layout.program.has_cpu_rows[1];
    if (cpu_rows && (parts_.cpu_tier == nullptr || !parts_.cpu_tier->all_up())) {
      return absl::UnavailableError("no CPU attention worker is attached");
    }
    bool writes = cpu_rows;
    for (const SubBatchLayout& rows : layout.sub_batch) {
      writes = writes || !rows.cpu_prefill.empty();
    }
    for (const PoolCopy& copy : input.copies) {
      writes = writes || copy.to_cpu;
    }
    if (writes && !LeaveStep().ok()) {
      return absl::UnavailableError("the CPU attention worker has not left an aborted step");
    }
    return absl::OkStatus();
  }

  absl::Status LeaveStep() {
    return parts_.cpu_tier == nullptr
               ? absl::OkStatus()
               : parts_.cpu_tier->LeaveStep(std::min(kAbortTimeoutUs, parts_.cpu_wait_timeout_us));
  }

  static absl::Status SynchronizeStream(device::Stream& stream) {
    while (true) {
      absl::Status status = stream.Synchronize(kSlowStepUs);
      if (!absl::IsDeadlineExceeded(status)) {
        return status;
      }
      base::LogWarning("a step is still running");
    }
  }

  absl::Status Synchronize() {
    absl::Status status = SynchronizeStream(*parts_.compute);
    for (device::Stream* stream : {parts_.transfer.get(), parts_.mover.get()}) {
      if (stream != nullptr) {
        status.Update(SynchronizeStream(*stream));
      }
    }
    return status;
  }

  // The CPU side leaves the step, too, before its blocks may be used for anything else.
  absl::Status Abort(uint64_t epoch, const absl::Status& cause) {
    if (const absl::Status left = LeaveStep(); !left.ok()) {
      base::LogWarning("the CPU attention worker did not acknowledge an abort",
                       {{"epoch", epoch}, {"error", left.ToString()}});
    }
    const bool lost = absl::IsUnavailable(cause) || absl::IsDeadlineExceeded(cause);
    return lost ? absl::UnavailableError(cause.message())
                : absl::InternalError(absl::StrCat("step ", epoch, ": ", cause.ToString()));
  }

  PipelineParts parts_;
  const std::unique_ptr<StepTracer> tracer_;  // null: steps are not traced
  RunnerLimits limits_;
};

absl::StatusOr<std::unique_ptr<device::Device>> OpenDevice(const PipelineOptions& options) {
  if (options.device == "host") {
    return device::CreateHostDevice({options.matmul_threads});
  }
  if (options.device == "cuda") {
    return device::CreateCudaDevice();
  }
  if (!options.device.starts_with(kPacedPrefix)) {
    return absl::UnimplementedError(absl::StrCat(
        "--device ", options.device, " is not available; allowed: host, cuda, paced:PROFILE"));
  }
  TANDEM_ASSIGN_OR_RETURN(const DeviceProfile profile,
                          LoadDeviceProfile(options.device.substr(kPacedPrefix.size())));
  return std::make_unique<device::PacedDevice>(profile, &device::RealPaceClock());
}

absl::StatusOr<PipelineParts> MakeParts(const PipelineOptions& options,
                                        const model_files::ModelFiles& files) {
  PipelineParts parts;
  TANDEM_ASSIGN_OR_RETURN(parts.device, OpenDevice(options));
  parts.compute = parts.device->CreateComputeStream();
  if (options.separate_transfer_stream || parts.device->has_copy_engine()) {
    parts.transfer = parts.device->CreateTransferStream();
    parts.mover = parts.device->CreateTransferStream();
  }
  TANDEM_ASSIGN_OR_RETURN(
      parts.context,
      ops::OpContext::Create(parts.device.get(), parts.compute.get(), options.compute_dtype));
  // Options that cannot work are refused before the weights are read.
  PoolMemory memory = MemoryBeside(*parts.device);
  TANDEM_RETURN_IF_ERROR(ComputePoolSizes(options, files.shape(), memory).status());
  model::DecoderLimits limits;
  limits.max_rows = options.max_num_batched_tokens;
  limits.max_positions =
      options.max_model_len > 0 ? options.max_model_len : files.shape().max_position;
  if (parts.device->kind() == device::DeviceKind::kCuda) {
    const MemoryPlan plan = PlanMemory(options, files.shape(), limits.max_positions);
    LogMemoryPlan(plan, memory.device, options.gpu_memory_utilization);
    TANDEM_RETURN_IF_ERROR(CheckMemoryPlan(plan, memory.device, options.gpu_memory_utilization));
    memory.reserved_bytes = plan.staging_bytes + plan.workspace_bytes;
  }
  TANDEM_ASSIGN_OR_RETURN(parts.decoder, model::Decoder::Load(parts.context.get(), files, limits));
  TANDEM_ASSIGN_OR_RETURN(
      parts.chooser, ops::CreateTokenChooser(parts.context.get(), parts.decoder->max_logit_rows(),
                                             files.shape().vocab_size));
  memory.device = parts.device->memory();
  memory.host = device::HostMemory();
  TANDEM_ASSIGN_OR_RETURN(parts.sizes, ComputePoolSizes(options, files.shape(), memory));
  parts.cpu_wait_timeout_us = options.cpu_wait_timeout_us;
  parts.attention_scale = 1.0f / std::sqrt(static_cast<float>(files.shape().head_dim));
  return parts;
}

absl::Status AllocatePools(const PipelineOptions& options, const ModelShape& shape,
                           PipelineParts& parts) {
  TANDEM_ASSIGN_OR_RETURN(parts.gpu_pool,
                          parts.device->Allocate(static_cast<size_t>(parts.sizes.num_gpu_blocks) *
                                                     parts.sizes.gpu.block_bytes(),
                                                 "the device KV pool"));
  if (parts.sizes.num_cpu_blocks == 0) {
    return absl::OkStatus();
  }
  TANDEM_ASSIGN_OR_RETURN(parts.cpu_tier,
                          CpuTier::Create(ExchangeGeometry(options, shape, parts.sizes),
                                          options.num_cpu_attention_workers));
  parts.registrations.resize(parts.cpu_tier->shards().size());
  for (size_t i = 0; i < parts.registrations.size(); ++i) {
    // Bells and slots; the pool follows when the worker has touched it.
    TANDEM_RETURN_IF_ERROR(
        RegisterRegion(parts, i, parts.cpu_tier->shards()[i].exchange->header().pool_offset));
  }
  parts.staging_geometry = parts.sizes.gpu;
  parts.staging_geometry.num_layers = 1;
  parts.staging_table.resize(static_cast<size_t>(parts.sizes.staging_blocks));
  std::iota(parts.staging_table.begin(), parts.staging_table.end(), 0);
  TANDEM_ASSIGN_OR_RETURN(
      parts.staging,
      parts.device->Allocate(parts.staging_table.size() * parts.staging_geometry.block_bytes(),
                             "the staging area of CPU prefills"));
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineRunner>> PipelineRunner::Create(
    const PipelineOptions& options, const model_files::ModelFiles& files) {
  std::unique_ptr<StepTracer> tracer;
  if (!options.trace_steps.empty()) {
    TANDEM_ASSIGN_OR_RETURN(tracer, StepTracer::Open(options.trace_steps));
  }
  TANDEM_ASSIGN_OR_RETURN(PipelineParts parts, MakeParts(options, files));
  TANDEM_RETURN_IF_ERROR(AllocatePools(options, files.shape(), parts));
  return std::make_unique<StreamPipelineRunner>(std::move(parts), options, std::move(tracer));
}

DType DefaultComputeDType(const std::string& device) {
  if (device.starts_with(kPacedPrefix)) {
    const absl::StatusOr<DeviceProfile> profile =
        LoadDeviceProfile(device.substr(kPacedPrefix.size()));
    return profile.ok() && PeakFlopsPerUs(*profile, DType::kBFloat16) <= 0 ? DType::kFloat16
                                                                           : DType::kBFloat16;
  }
  if (device == "cuda") {
    const absl::StatusOr<int32_t> capability = device::CudaComputeCapability();
    return capability.ok() && *capability < 80 ? DType::kFloat16 : DType::kBFloat16;
  }
  return device != "host" || ops::HostHasFastBFloat16() ? DType::kBFloat16 : DType::kFloat32;
}

}  // namespace tandem::gpu_worker
