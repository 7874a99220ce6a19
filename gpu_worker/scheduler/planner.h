#pragma once

#include <cstdint>
#include <vector>

#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/scheduler/scheduler.h"
#include "gpu_worker/scheduler/scheduler_state.h"
#include "gpu_worker/scheduler/step_plan.h"

namespace tandem::gpu_worker {

// Which pools the policy lets sequences live in, and which a step may touch now.
struct TierRules {
  bool gpu_allowed = true;
  bool cpu_allowed = false;
  bool cpu_usable = false;  // allowed, and its worker is there
};
TierRules RulesOf(const SchedulerConfig& config, const SchedulerState& state);

// The making of one plan; used once. Internal to the scheduler.
class Planner {
 public:
  Planner(const SchedulerConfig& config, const Predictor& predictor, const SchedulerState& state,
          int64_t now_us);
  StepPlan Run();

 private:
  struct Resident {
    const SequenceView* view = nullptr;
    bool gone = false;     // evicted or moved in this step
    bool blocked = false;  // sits this step out for want of a block
  };
  // How many CPU decodes, and which, in which sub-batch: the outcome of comparing the modes.
  struct Placement {
    StepMode mode = StepMode::kGpuOnly;
    size_t count = 0;  // of cpu_decodes_, in order
    double rate = 0;   // predicted progress per microsecond
  };

  // planner.cc: room in the pools (rules 1 and 2).
  void SortResidents();
  void PlanGpuDecodes();
  bool MakeGpuRoom(Resident& needy, int32_t missing);
  void EvictFromGpu(Resident& victim);
  bool CanSwapOut(const SequenceView& view) const;
  void PlanSwapIns();
  std::vector<Resident*> CpuDecodeCandidates();
  void PlanCpuGrowth();
  bool MakeCpuRoom(Resident& needy, int32_t missing);
  void EvictFromCpu(Resident& victim);
  Resident* YoungestIn(std::vector<Resident*>& pool, const SequenceView& needy);
  void AddGpuDecode(const SequenceView& view);

  // planner_admission.cc: prefill chunks and admission (rules 4 and 6).
  void PlanPrefills();
  void PlanPrefill(const SequenceView& view, Tier tier);
  int64_t TrimToStepTarget(const SequenceView& view, int64_t chunk) const;
  void Admit();
  Tier ForcedTier(const SequenceView& view) const;
  bool FitsForAdmission(const SequenceView& view, Tier tier) const;
  bool CpuTierPays(const SequenceView& view) const;
  void AdmitTo(const SequenceView& view, Tier tier);

  // planner_modes.cc: placement of CPU decodes and the mode (rules 3 and 5).
  void PlaceCpuDecodes();
  void PlaceForced();
  void PlaceAuto();
  Placement BestUnified(const SubBatchLoad& base, size_t at_least) const;
  Placement BestAsymmetric(const SubBatchLoad& base, size_t at_least);
  bool BelongsInB(const SubBatchLoad& a, const SubBatchLoad& b, const SequenceView& view) const;
  void EmitCpuDecodes(StepMode mode, size_t count);
  bool SlotHasRoom(const SubBatchLoad& load, int64_t entries, const SequenceView& view) const;
  size_t CountAged() const;
  SubBatchLoad DeviceLoad() const;

  const SchedulerConfig& config_;
  const Predictor& predictor_;
  const SchedulerState& state_;
  const int64_t now_us_;
  const TierRules rules_;

  std::vector<Resident> residents_;  // oldest first
  std::vector<Resident*> on_gpu_;    // oldest first
  std::vector<Resident*> on_cpu_;
  std::vector<const SequenceView*> cpu_decodes_;  // that may run, the longest passed over first
  int32_t free_gpu_;
  int32_t free_cpu_;
  int32_t coming_gpu_ = 0;  // blocks of this step's swap-outs that nobody waits for yet
  int32_t cpu_growth_ = 0;  // blocks that CPU residents are about to take
  int32_t token_budget_;
  int32_t sequence_budget_;
  int32_t gpu_residents_ = 0;  // as the plan leaves them
  int32_t cpu_residents_ = 0;
  bool evicted_ = false;
  std::vector<const SequenceView*> gpu_decodes_;
  struct Prefill {
    const SequenceView* view = nullptr;
    Tier tier = Tier::kGpu;
    int32_t chunk = 0;
  };
  std::vector<Prefill> prefills_;
  std::vector<bool> in_b_;  // by index into cpu_decodes_: sub-batch B in asymmetric mode
  double device_progress_ = 0;
  int64_t copied_tokens_ = 0;
  StepPlan plan_;
};

}  // namespace tandem::gpu_worker
