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
#include "gpu_worker/device/host/host_device.h"
#include "gpu_worker/pipeline/measure_rates.h"
#include "gpu_worker/pipeline/pipeline_parts.h"
#include "gpu_worker/pipeline/stage_runner.h"
#include "gpu_worker/pipeline/step_layout.h"

namespace tandem::gpu_worker {
namespace {

// Every wait inside a step is bounded, so a step ends; a slow one says that it is there.
constexpr int64_t kSlowStepUs = int64_t{60} * 1'000'000;
constexpr int64_t kAbortSliceUs = 20'000;       // how soon a death is noticed meanwhile
constexpr int64_t kAbortTimeoutUs = 2'000'000;  // or the time of a layer, if that is shorter

class HostPipelineRunner : public PipelineRunner {
 public:
  explicit HostPipelineRunner(PipelineParts parts, const PipelineOptions& options)
      : parts_(std::move(parts)) {
    limits_.num_gpu_blocks = parts_.sizes.num_gpu_blocks;
    limits_.gpu_block_tokens = options.block_tokens;
    limits_.num_cpu_blocks = parts_.sizes.num_cpu_blocks;
    limits_.cpu_block_tokens = kv::kCpuBlockTokens;
    if (parts_.exchange != nullptr) {
      const exchange::Geometry& geometry = parts_.exchange->header().geometry;
      limits_.max_cpu_rows_per_slot = static_cast<int32_t>(geometry.max_rows);
      limits_.max_cpu_table_entries_per_slot = static_cast<int64_t>(geometry.max_table_entries);
    }
    limits_.max_batched_tokens = options.max_num_batched_tokens;
    limits_.vocab_size = parts_.decoder->shape().vocab_size;
  }

  const RunnerLimits& limits() const override { return limits_; }
  MeasuredRates MeasureRates() override { return MeasurePipeline(parts_); }
  exchange::DeviceSide* exchange() override { return parts_.exchange.get(); }

  void SetCpuWorkerUp(bool up) override {
    cpu_worker_up_.store(up);
    if (!up && parts_.exchange != nullptr) {
      deaths_.fetch_add(1);
      parts_.exchange->Release();
    }
  }

  absl::StatusOr<StepOutput> Run(const StepInput& input) override {
    const int64_t start_us = base::SystemClock().NowUs();
    const uint64_t deaths = deaths_.load();
    TANDEM_ASSIGN_OR_RETURN(const StepLayout layout, BuildStepLayout(input, LayoutLimitsNow()));
    TANDEM_RETURN_IF_ERROR(CheckCpuTier(input, layout));
    parts_.decoder->PreparePositions(layout.max_position);
    StageRunner runner(parts_, input, layout);
    const absl::Status launched = runner.Launch();
    // Idle before anything is given back: queued work points into this step.
    absl::Status ran = Synchronize();
    ran.Update(launched);
    if (!ran.ok()) {
      if (runner.began()) {
        entered_epoch_ = input.epoch;
        entered_deaths_ = deaths;
      }
      return Abort(input.epoch, ran);
    }
    StepOutput output = runner.TakeOutput();
    output.timings.total_us = static_cast<double>(base::SystemClock().NowUs() - start_us);
    return output;
  }

 private:
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
    if (cpu_rows && !cpu_worker_up_.load()) {
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

  // Until the worker that entered an aborted step has left it or is known to be dead.
  absl::Status LeaveStep() {
    if (entered_epoch_ == 0) {
      return absl::OkStatus();
    }
    const base::Clock& clock = base::SystemClock();
    const int64_t deadline_us =
        clock.NowUs() + std::min(kAbortTimeoutUs, parts_.cpu_wait_timeout_us);
    while (deaths_.load() == entered_deaths_) {
      const absl::Status left = parts_.exchange->AbortStep(entered_epoch_, kAbortSliceUs);
      if (left.ok()) {
        break;
      }
      if (clock.NowUs() >= deadline_us) {
        return left;
      }
    }
    entered_epoch_ = 0;
    return absl::OkStatus();
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
    if (parts_.transfer != nullptr) {
      status.Update(SynchronizeStream(*parts_.transfer));
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
  RunnerLimits limits_;
  std::atomic<bool> cpu_worker_up_{false};
  std::atomic<uint64_t> deaths_{0};  // of CPU workers
  // An aborted step that the CPU worker may still be in (0: none), and the deaths before it began.
  uint64_t entered_epoch_ = 0;
  uint64_t entered_deaths_ = 0;
};

absl::StatusOr<PipelineParts> MakeParts(const PipelineOptions& options,
                                        const model_files::ModelFiles& files) {
  PipelineParts parts;
  parts.device = device::CreateHostDevice({options.matmul_threads});
  parts.compute = parts.device->CreateComputeStream();
  if (options.separate_transfer_stream || parts.device->has_copy_engine()) {
    parts.transfer = parts.device->CreateTransferStream();
  }
  TANDEM_ASSIGN_OR_RETURN(
      parts.context,
      ops::OpContext::Create(parts.device.get(), parts.compute.get(), options.compute_dtype));
  // Options that cannot work are refused before the weights are read.
  TANDEM_RETURN_IF_ERROR(ComputePoolSizes(options, files.shape(), parts.device->memory()).status());
  model::DecoderLimits limits;
  limits.max_rows = options.max_num_batched_tokens;
  limits.max_positions =
      options.max_model_len > 0 ? options.max_model_len : files.shape().max_position;
  TANDEM_ASSIGN_OR_RETURN(parts.decoder, model::Decoder::Load(parts.context.get(), files, limits));
  TANDEM_ASSIGN_OR_RETURN(parts.sizes,
                          ComputePoolSizes(options, files.shape(), parts.device->memory()));
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
  TANDEM_ASSIGN_OR_RETURN(
      parts.exchange, exchange::DeviceSide::Create(ExchangeGeometry(options, shape, parts.sizes)));
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
  if (options.device != "host") {
    return absl::UnimplementedError(
        absl::StrCat("--device ", options.device, " is not available; allowed: host"));
  }
  TANDEM_ASSIGN_OR_RETURN(PipelineParts parts, MakeParts(options, files));
  TANDEM_RETURN_IF_ERROR(AllocatePools(options, files.shape(), parts));
  return std::make_unique<HostPipelineRunner>(std::move(parts), options);
}

DType DefaultComputeDType(const std::string& device) {
  return device != "host" || ops::HostHasFastBFloat16() ? DType::kBFloat16 : DType::kFloat32;
}

}  // namespace tandem::gpu_worker
