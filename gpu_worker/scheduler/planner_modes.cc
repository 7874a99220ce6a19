#include <algorithm>
#include <array>

#include "gpu_worker/scheduler/planner.h"

// Loads of a plan, the forced policies, and the plan's last form.
namespace tandem::gpu_worker {

void Planner::AddCpuDecode(const SequenceView& view, SubBatchLoad* load) {
  ++load->rows;
  ++load->cpu_decodes;
  load->cpu_context_tokens += view.total_tokens;
}

SubBatchLoad Planner::GpuDecodeLoad(size_t begin, size_t end) const {
  SubBatchLoad load;
  load.gpu_decodes = static_cast<int64_t>(end - begin);
  load.gpu_context_tokens = gpu_tokens_before_[end] - gpu_tokens_before_[begin];
  load.rows = load.gpu_decodes;
  return load;
}

void Planner::AddPrefill(const Prefill& prefill, SubBatchLoad* load) {
  if (prefill.chunk <= 0) {
    return;
  }
  load->rows += prefill.chunk;
  load->prefills.push_back({prefill.chunk, prefill.view->cached_tokens});
  if (prefill.tier == Tier::kCpu) {
    load->staged_in_tokens += prefill.view->cached_tokens;
    load->staged_out_tokens += prefill.chunk;
  }
}

// All device work in one sub-batch.
SubBatchLoad Planner::DeviceLoad(const std::vector<Prefill>& prefills) const {
  SubBatchLoad load = GpuDecodeLoad(0, gpu_decodes_.size());
  load.prefills.reserve(prefills.size());
  for (const Prefill& prefill : prefills) {
    AddPrefill(prefill, &load);
  }
  return load;
}

// That of sub-batch `x`: its prefills, and of the device decodes the last `gpu_in_b` or the others.
SubBatchLoad Planner::DeviceLoad(const std::vector<Prefill>& prefills, int x,
                                 size_t gpu_in_b) const {
  const size_t in_a = gpu_decodes_.size() - gpu_in_b;
  SubBatchLoad load = x == 0 ? GpuDecodeLoad(0, in_a) : GpuDecodeLoad(in_a, gpu_decodes_.size());
  load.prefills.reserve(prefills.size());
  for (const Prefill& prefill : prefills) {
    if (prefill.in_b == (x == 1)) {
      AddPrefill(prefill, &load);
    }
  }
  return load;
}

// The terms of `load`, which is that of `base` and some CPU decodes.
LayerTerms Planner::WithCpuDecodes(const LayerTerms& base, const SubBatchLoad& load) const {
  const CostModel& model = predictor_.model();
  const Corrections& corrections = state_.corrections;
  LayerTerms terms = base;
  terms.linear_us = corrections.linear * model.LinearUs(load.rows);
  terms.cpu_decode_us =
      predictor_.CpuDecodeUs(load.cpu_decodes, load.cpu_context_tokens, corrections);
  terms.transfer_us = corrections.copies * model.TransferUs(load.cpu_decodes);
  return terms;
}

void Planner::CountDeviceProgress() {
  device_progress_ = static_cast<double>(gpu_decodes_.size());
  for (const Prefill& prefill : prefills_) {
    device_progress_ += static_cast<double>(prefill.chunk) /
                        static_cast<double>(std::max<int64_t>(prefill.view->tokens_to_hold(), 1));
  }
}

void Planner::PlaceCpuDecodes() {
  CountDeviceProgress();
  in_b_.assign(cpu_decodes_.size(), false);
  switch (config_.policy) {
    case OffloadPolicy::kNeo:
      PlaceNeo();
      break;
    case OffloadPolicy::kAuto:
      PlaceAuto();
      break;
    default:
      PlaceForced();
      break;
  }
  for (const Prefill& prefill : prefills_) {
    plan_.sub_batch[prefill.in_b ? 1 : 0].push_back(
        {prefill.view->id, prefill.tier, true, prefill.chunk});
  }
}

bool Planner::SlotHasRoom(const SubBatchLoad& load, int64_t entries,
                          const SequenceView& view) const {
  const int64_t more = state_.cpu.BlocksFor(view.total_tokens);
  return load.cpu_decodes < config_.max_cpu_rows_per_slot &&
         (config_.max_cpu_table_entries_per_slot <= 0 ||
          entries + more <= config_.max_cpu_table_entries_per_slot);
}

// Every CPU decode that the slots hold; asymmetric: shared evenly, the first to B.
void Planner::PlaceForced() {
  const bool is_asymmetric = config_.policy == OffloadPolicy::kAsymmetric;
  SubBatchLoad load[2] = {DeviceLoad(prefills_), {}};
  int64_t entries[2] = {0, 0};
  Placement placement;
  placement.mode = is_asymmetric ? StepMode::kAsymmetric : StepMode::kUnified;
  for (const SequenceView* view : cpu_decodes_) {
    const int x = is_asymmetric && placement.count % 2 == 0 ? 1 : 0;
    if (!SlotHasRoom(load[x], entries[x], *view)) {
      break;
    }
    AddCpuDecode(*view, &load[x]);
    entries[x] += state_.cpu.BlocksFor(view->total_tokens);
    in_b_[placement.count] = x == 1;
    ++placement.count;
  }
  EmitCpuDecodes(placement);
}

// The step in which a CPU decode runs at the latest, whatever mode and guard say. One that was only
// pushed out, from a device that alone is faster, comes back when there is room and waits longer
// till then: to run it on the CPU holds up everybody else.
uint64_t Planner::DueStep(const SequenceView& view) const {
  const bool comes_back = config_.policy == OffloadPolicy::kAuto && steady_.cpu_decodes <= 0 &&
                          state_.gpu.CanEverHold(view.total_tokens + 1);
  return view.last_progress_step +
         config_.max_passed_over_steps * (comes_back ? config_.pushed_out_patience : 1);
}

size_t Planner::CountAged() const {
  size_t aged = 0;  // the list begins with those that are due first
  while (aged < cpu_decodes_.size() && DueStep(*cpu_decodes_[aged]) <= state_.step_index) {
    ++aged;
  }
  return aged;
}

// The device decodes, the last `gpu_in_b` of them in B, and the first placement.count CPU decodes;
// the first `in_b` of them, or those marked, in B.
void Planner::EmitCpuDecodes(const Placement& placement) {
  StepLoad load;
  load.copied_gpu_tokens = copied_tokens_;
  load.sub_batch[0] = DeviceLoad(prefills_);
  const double device_value =
      value_.Of(static_cast<double>(gpu_decodes_.size()),
                static_cast<double>(load.sub_batch[0].rows - load.sub_batch[0].gpu_decodes));
  if (plan_.gpu_only_value_per_us == 0) {
    const double alone_us = predictor_.Predict(load, state_.corrections).total_us;
    plan_.gpu_only_value_per_us = alone_us > 0 ? device_value / alone_us : 0;
  }
  load.mode = placement.count == 0 ? StepMode::kGpuOnly : placement.mode;
  load.order = is_neo() ? StageOrder::kPublished : StageOrder::kOverlapped;
  const size_t gpu_in_b = load.mode == StepMode::kAsymmetric ? placement.gpu_in_b : 0;
  const size_t gpu_in_a = gpu_decodes_.size() - gpu_in_b;
  load.sub_batch[0] = DeviceLoad(prefills_, 0, gpu_in_b);
  load.sub_batch[1] = DeviceLoad(prefills_, 1, gpu_in_b);
  plan_.sub_batch[0].reserve(gpu_in_a + placement.count + prefills_.size());
  for (size_t i = 0; i < gpu_decodes_.size(); ++i) {
    plan_.sub_batch[i < gpu_in_a ? 0 : 1].push_back({gpu_decodes_[i]->id, Tier::kGpu, false, 1});
  }
  for (size_t i = 0; i < placement.count; ++i) {
    const bool in_b = in_b_[i] || i < placement.in_b;
    const int x = load.mode == StepMode::kAsymmetric && in_b ? 1 : 0;
    AddCpuDecode(*cpu_decodes_[i], &load.sub_batch[x]);
    plan_.sub_batch[x].push_back({cpu_decodes_[i]->id, Tier::kCpu, false, 1});
  }
  plan_.mode = load.mode;
  plan_.order = load.order;
  plan_.progress = device_progress_ + static_cast<double>(placement.count);
  const bool is_auto = config_.policy == OffloadPolicy::kAuto;
  plan_.value = device_value + value_.Of(is_auto ? MeanCpuDecodes(placement.count)
                                                 : static_cast<double>(placement.count),
                                         0);
  plan_.predicted = predictor_.Predict(load, state_.corrections);
}

}  // namespace tandem::gpu_worker
