#include "gpu_worker/pipeline/pipeline_runner.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/base/status_macros.h"
#include "gpu_worker/cost_model/device_profile.h"
#include "gpu_worker/device/cuda/cuda_device.h"
#include "gpu_worker/pipeline/group_watch.h"
#include "gpu_worker/pipeline/make_parts.h"
#include "gpu_worker/pipeline/measure_rates.h"
#include "gpu_worker/pipeline/rank_team.h"
#include "gpu_worker/pipeline/stage_runner.h"
#include "gpu_worker/pipeline/step_layout.h"
#include "gpu_worker/pipeline/step_trace.h"

namespace tandem::gpu_worker {
namespace {

// Rows at which the host's products reach 95% of their rate (docs/host-serving.md, matrix
// products).
constexpr int32_t kHostSaturatingRows = 512;

constexpr std::string_view kPacedPrefix = "paced:";

// Every wait inside a step is bounded, so a step ends; a slow one says that it is there.
constexpr int64_t kSlowStepUs = int64_t{60} * 1'000'000;
constexpr int64_t kAbortTimeoutUs = 2'000'000;  // or the time of a layer, if that is shorter

class StreamPipelineRunner : public PipelineRunner {
 public:
  StreamPipelineRunner(PipelineRanks ranks, std::unique_ptr<RankTeam> team,
                       const PipelineOptions& options, std::unique_ptr<StepTracer> tracer)
      : ranks_(std::move(ranks)),
        parts_(ranks_.parts[0]),
        team_(std::move(team)),
        tracer_(std::move(tracer)) {
    if (ranks_.group != nullptr) {
      watch_ = std::make_unique<GroupWatch>(ranks_.group.get(), options.collective_timeout_us);
    }
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
    if (parts_.device->kind() == device::DeviceKind::kHost) {
      limits_.saturating_rows = kHostSaturatingRows;
    }
    limits_.vocab_size = parts_.decoder->shape().vocab_size;
  }

  // Communicators do not end while graphs hold calls of theirs.
  ~StreamPipelineRunner() override {
    for (PipelineParts& parts : ranks_.parts) {
      parts.graphs.reset();
    }
  }

  const RunnerLimits& limits() const override { return limits_; }
  // Of the first device alone: what the devices exchange is left to the measurement of steps.
  MeasuredRates MeasureRates() override {
    if (ranks_.group != nullptr) {
      parts_.decoder->SetCommunicator(nullptr);
    }
    const MeasuredRates rates = MeasurePipeline(parts_);
    if (ranks_.group != nullptr) {
      parts_.decoder->SetCommunicator(&ranks_.group->communicator(0));
    }
    return rates;
  }
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
    return RegisterRegion(ranks_, worker,
                          shard.exchange->header().pool_offset +
                              static_cast<uint64_t>(num_blocks) * shard.pool.block_bytes());
  }

  absl::Status DeviceHealth() const override {
    absl::Status health;
    for (const PipelineParts& parts : ranks_.parts) {
      if (parts.device->kind() == device::DeviceKind::kCuda) {
        health.Update(static_cast<const device::CudaDevice&>(*parts.device).Health());
      }
    }
    health.Update(GroupHealth());
    return health;
  }

  std::string device_name() const override {
    const std::string name(parts_.device->name());
    return parts_.num_ranks == 1 ? name : absl::StrCat(parts_.num_ranks, " x ", name);
  }

  absl::StatusOr<StepOutput> Run(const StepInput& input) override {
    const int64_t start_us = base::SystemClock().NowUs();
    TANDEM_ASSIGN_OR_RETURN(StepLayout layout, BuildStepLayout(input, LayoutLimitsNow()));
    TANDEM_RETURN_IF_ERROR(CheckCpuTier(input, layout));
    for (const PipelineParts& parts : ranks_.parts) {
      TANDEM_RETURN_IF_ERROR(parts.decoder->PreparePositions(layout.max_position));
    }
    const std::optional<GraphShape> shape = ShapeOf(layout);
    if (shape.has_value()) {
      FillUp(*shape, &layout);
    }
    TierStep tier_step(parts_.cpu_tier.get(), input.epoch, layout, parts_.attention_scale,
                       parts_.cpu_wait_timeout_us);
    std::vector<std::unique_ptr<StageRunner>> runners(ranks_.parts.size());
    if (watch_ != nullptr) {
      watch_->Begin();
    }
    const absl::Status ran = team_->Run([&](int32_t rank) {
      const auto index = static_cast<size_t>(rank);
      runners[index] =
          std::make_unique<StageRunner>(ranks_.parts[index], input, layout, &tier_step, shape);
      return RunRank(ranks_.parts[index], *runners[index]);
    });
    if (watch_ != nullptr) {
      watch_->End();
    }
    if (!ran.ok()) {
      return Abort(input.epoch, ran);
    }
    if (tier_step.began()) {
      parts_.cpu_tier->EndStep();
    }
    StepOutput output = runners[0]->TakeOutput();
    output.is_graph = runners[0]->is_graph();
    output.is_captured = runners[0]->is_captured();
    output.timings.total_us = static_cast<double>(base::SystemClock().NowUs() - start_us);
    if (tracer_ != nullptr) {
      Trace(input, layout, runners[0]->Spans(), start_us);
    }
    return output;
  }

 private:
  // Of a step that all devices run as graphs.
  std::optional<GraphShape> ShapeOf(const StepLayout& layout) const {
    std::optional<GraphShape> shape;
    for (const PipelineParts& parts : ranks_.parts) {
      shape = parts.graphs != nullptr ? parts.graphs->ShapeOf(layout) : std::nullopt;
      if (!shape.has_value()) {
        break;
      }
    }
    return shape;
  }

  void Trace(const StepInput& input, const StepLayout& layout, std::vector<TraceSpan> spans,
             int64_t start_us) {
    StepTrace step;
    step.epoch = input.epoch;
    step.mode = StepModeName(input.mode);
    for (int x = 0; x < 2; ++x) {
      for (const SequenceWork& work : input.sub_batch[x]) {
        step.rows[x] += static_cast<int64_t>(work.tokens.size());
      }
      step.cpu_rows[x] = static_cast<int64_t>(layout.sub_batch[x].cpu_slot.size());
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

  // One device's part of a step.
  absl::Status RunRank(const PipelineParts& parts, StageRunner& runner) {
    const absl::Status launched = runner.Launch();
    // Idle before anything is given back: queued work points into this step.
    absl::Status ran = Synchronize(parts);
    ran.Update(launched);
    ran.Update(GroupHealth());
    return ran;
  }

  absl::Status Synchronize(const PipelineParts& parts) {
    absl::Status status;
    for (device::Stream* stream : {parts.compute.get(), parts.transfer.get(), parts.mover.get(),
                                   parts.swapper.get(), parts.loader.get()}) {
      if (stream != nullptr) {
        status.Update(SynchronizeStream(*stream));
      }
    }
    return status;
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

  absl::Status GroupHealth() const {
    return ranks_.group == nullptr ? absl::OkStatus() : ranks_.group->Health();
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

  PipelineRanks ranks_;
  PipelineParts& parts_;  // of the first device
  const std::unique_ptr<RankTeam> team_;
  std::unique_ptr<GroupWatch> watch_;         // of several devices, else null
  const std::unique_ptr<StepTracer> tracer_;  // null: steps are not traced
  RunnerLimits limits_;
};

}  // namespace

absl::StatusOr<std::unique_ptr<PipelineRunner>> PipelineRunner::Create(
    const PipelineOptions& options, const model_files::ModelFiles& files) {
  std::unique_ptr<StepTracer> tracer;
  if (!options.trace_steps.empty()) {
    TANDEM_ASSIGN_OR_RETURN(tracer, StepTracer::Open(options.trace_steps));
  }
  auto team = std::make_unique<RankTeam>(options.tensor_parallel_size);
  TANDEM_ASSIGN_OR_RETURN(PipelineRanks ranks, MakePipelineRanks(options, files, *team));
  return std::make_unique<StreamPipelineRunner>(std::move(ranks), std::move(team), options,
                                                std::move(tracer));
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
