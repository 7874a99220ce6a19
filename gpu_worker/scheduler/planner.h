#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/scheduler/cost_memo.h"
#include "gpu_worker/scheduler/scheduler.h"
#include "gpu_worker/scheduler/scheduler_state.h"
#include "gpu_worker/scheduler/step_plan.h"
#include "gpu_worker/scheduler/work_value.h"

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
  SteadyState Study() const;

 private:
  struct Resident {
    const SequenceView* view = nullptr;
    bool gone = false;     // evicted or moved in this step
    bool may_run = false;  // of the CPU decodes: within budgets and slots
    bool blocked = false;  // sits this step out for want of a block
  };
  struct Prefill {
    const SequenceView* view = nullptr;
    Tier tier = Tier::kGpu;
    int32_t chunk = 0;
    bool in_b = false;  // in sub-batch B
  };
  // How many CPU decodes, and which, in which sub-batch: the outcome of comparing the modes.
  struct Placement {
    StepMode mode = StepMode::kGpuOnly;
    size_t count = 0;     // of cpu_decodes_, in order
    size_t in_b = 0;      // of them, the first: in sub-batch B
    size_t gpu_in_b = 0;  // of gpu_decodes_, the last: in sub-batch B
    bool halved = false;  // prefill in both sub-batches
    double rate = 0;      // predicted value per microsecond
    double total_us = 0;
  };
  // The device work that CPU decodes are placed beside.
  struct Base {
    LayerTerms terms[2];  // A, B
    int64_t rows[2] = {0, 0};
    int64_t prefill_rows = 0;
    size_t gpu_in_b = 0;
    bool halved = false;
  };

  // planner.cc: room in the pools (rules 1 and 2).
  void SortResidents();
  void PlanGpuDecodes();
  bool MakeGpuRoom(Resident& needy, int32_t missing);
  void EvictFromGpu(Resident& victim);
  bool CanSwapOut(const SequenceView& view) const;
  void PlanSwapIns();
  bool HidesBehindDecodes(int64_t copied_tokens) const;
  void SortByDueStep(std::vector<Resident*>* decodes) const;
  std::vector<Resident*> CpuDecodeCandidates();
  void PlanCpuGrowth();
  bool MakeCpuRoom(Resident& needy, int32_t missing);
  void EvictFromCpu(Resident& victim);
  Resident* YoungestIn(std::vector<Resident*>& pool, const SequenceView& needy);
  void AddGpuDecode(const SequenceView& view);
  void MakeRoomAhead();
  bool SwapInsWait() const;

  // planner_admission.cc: prefill chunks and admission (rules 4 and 6).
  void PlanPrefills();
  void PlanPrefill(const SequenceView& view, Tier tier);
  bool IsHog(const SequenceView& view) const;
  bool PromptsSaturate() const;
  int64_t WantedChunk(const SequenceView& view, int64_t budget) const;
  double StepUsWith(const Prefill& prefill, int64_t chunk) const;
  int64_t SmallestHogChunk(const Prefill& prefill, int64_t chunk, double alone_us) const;
  int64_t TrimToLimits(const Prefill& prefill, int64_t chunk) const;
  void Admit();
  Tier ForcedTier(const SequenceView& view) const;
  bool FitsForAdmission(const SequenceView& view, Tier tier) const;
  void AdmitTo(const SequenceView& view, Tier tier);

  StepBounds Bounds() const { return {config_.max_num_seqs, config_.max_num_batched_tokens}; }

  // planner_tier.cc: the steady state: what work is worth, and the CPU tier's size.
  struct SteadyStep {
    double total_us = 0;
    double decodes = 0;
    double prefill_rows = 0;
    double rate() const { return decodes / total_us; }
  };
  SteadyStep SteadyStepOf(double cpu, double more_rows) const;
  SteadyStep MixedStep(double cpu, double decodes, double rows) const;
  struct Sight {
    double requests = 0;   // that run, wait or are about to come
    double on_cpu = 0;     // sequences there now
    double row_us = 0;     // of prefill, in full steps
    double decode_us = 0;  // of the device alone, beside no prefill
    double held_us = 0;    // the same with half of those on the CPU
  };
  double DecodeUsBeside(double cpu) const;
  Sight LookAhead() const;
  double RateInSight(const Sight& sight, double cpu, double rate) const;
  struct AloneStep {
    double total_us = 0;
    double decodes = 0;
    double rows = 0;  // of prefill, in the steps that have any
    double gain = 1;  // over prefilling at once what fits
    double rate() const { return decodes / total_us; }
  };
  AloneStep AloneWith(double rows) const;
  AloneStep BestAlone() const;
  struct TierSize {
    double cpu = 0;   // decodes of a step
    double rate = 0;  // in sight
    double step_us = 0;
  };
  double Largest(std::span<const TierSize> tried, double best) const;
  double BestCpuDecodes(double alone) const;
  double Fill() const;
  WorkValue ValueNow() const;
  bool CpuTierPays() const;
  bool CpuTierServes() const;
  bool CpuTierIsFilled() const;

  // planner_modes.cc: loads, the forced policies, the plan's last form.
  void PlaceCpuDecodes();
  void CountDeviceProgress();
  void PlaceForced();
  static void AddCpuDecode(const SequenceView& view, SubBatchLoad* load);
  void EmitCpuDecodes(const Placement& placement);
  bool SlotHasRoom(const SubBatchLoad& load, int64_t entries, const SequenceView& view) const;
  uint64_t DueStep(const SequenceView& view) const;
  size_t CountAged() const;
  static void AddPrefill(const Prefill& prefill, SubBatchLoad* load);
  SubBatchLoad DeviceLoad(const std::vector<Prefill>& prefills) const;
  SubBatchLoad DeviceLoad(const std::vector<Prefill>& prefills, int x, size_t gpu_in_b) const;
  LayerTerms WithCpuDecodes(const LayerTerms& base, const SubBatchLoad& load) const;

  // planner_auto.cc: placement of CPU decodes, prefill beside them, and the mode (rules 3 and 5).
  void PlaceAuto();
  void EmitAlone(std::vector<Prefill> prefills);
  Placement BestOffloaded(const std::vector<Prefill>& prefills, size_t at_least) const;
  Placement BestOf(const Base& base, StepMode mode, size_t at_least) const;
  Placement Evaluate(const Base& base, StepMode mode, size_t count) const;
  std::vector<Prefill> PacedPrefills() const;
  bool PaceFromTheStart() const;
  std::vector<Prefill> PacedAlone() const;
  Placement BalancePrefill(size_t at_least);
  std::vector<Prefill> Trimmed(std::vector<Prefill> prefills, int64_t rows) const;
  std::vector<Prefill> Halved(int64_t rows) const;
  Base BaseOf(const std::vector<Prefill>& prefills, size_t gpu_in_b) const;
  Placement BestAsymmetric(const std::vector<Prefill>& prefills, const Base& base,
                           size_t at_least) const;
  SubBatchLoad GpuDecodeLoad(size_t begin, size_t end) const;
  void SumCpuDecodes();
  LayerTerms TermsWith(const Base& base, bool in_b, size_t begin, size_t end) const;
  std::array<size_t, 2> SplitRange(size_t count) const;
  size_t MostCpuDecodes(bool two) const;
  size_t BestSplit(const Base& base, size_t count) const;
  double MeanCpuDecodes(size_t count) const;
  double ValueOf(const Base& base, size_t cpu_decodes) const;
  double SteadyLayerUs(const LayerTerms& a, const LayerTerms& b) const;
  bool IsTooSlow(const Placement& placement) const;

  // planner_neo.cc: the published policy.
  bool is_neo() const { return config_.policy == OffloadPolicy::kNeo; }
  int32_t NeoHighWatermark() const;
  int32_t NeoLowWatermark() const;
  bool IsNeoAged(const SequenceView& view) const;
  void MakeNeoRoom();
  void AdmitNeo();
  Tier NeoTier(const SequenceView& view, bool cpu_only) const;
  void PlaceNeo();
  void SplitNeo(std::array<SubBatchLoad, 2>& loads);
  size_t TrimNeoPrefills(const std::array<SubBatchLoad, 2>& loads, bool pipelined) const;
  double NeoDeviceUs(const SubBatchLoad& load) const;
  std::array<double, 2> NeoRemains(const std::array<SubBatchLoad, 2>& loads) const;

  const SchedulerConfig& config_;
  const Predictor& predictor_;
  const SchedulerState& state_;
  const int64_t now_us_;
  const TierRules rules_;
  const double overlap_;  // of device and CPU

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
  bool gpu_is_promised_ = false;  // to what waits in the CPU pool to come back
  std::vector<const SequenceView*> gpu_decodes_;
  std::vector<int64_t> gpu_tokens_before_ = {0};  // of the first device decodes
  std::vector<Prefill> prefills_;
  std::vector<Prefill> balanced_;        // less of them, for the offloaded step
  std::vector<bool> in_b_;               // by index into cpu_decodes_: forced into sub-batch B
  std::vector<int64_t> tokens_before_;   // of the first CPU decodes
  std::vector<int64_t> entries_before_;  // their table entries
  mutable CostMemo costs_;               // with them
  SteadyState steady_;
  WorkValue value_;
  double device_progress_ = 0;
  int64_t copied_tokens_ = 0;
  StepPlan plan_;
};

}  // namespace tandem::gpu_worker
