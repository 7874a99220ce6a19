#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "gpu_worker/cost_model/correction.h"
#include "gpu_worker/engine/cpu_worker_state.h"
#include "gpu_worker/engine/engine.h"
#include "gpu_worker/engine/engine_invariants.h"
#include "gpu_worker/engine/sequence.h"
#include "gpu_worker/kv/dual_block_manager.h"
#include "gpu_worker/scheduler/offload_guard.h"
#include "gpu_worker/scheduler/scheduler.h"

namespace tandem::gpu_worker {

// The engine without clock, thread and runner: sequences, blocks, plans. Each step is PlanStep,
// then Commit or Abort; Submit, Cancel and the CPU worker's events may come at any time, between
// the two as well. Production, tests and the simulator drive this same class. Pure; one thread at a
// time.
class EngineCore {
 public:
  EngineCore(const EngineOptions& options, const RunnerLimits& limits,
             std::shared_ptr<const CostModel> cost_model);

  SubmitResult Submit(GenerationRequest request, int64_t now_us);
  // Its blocks are free at once, or when the running step that uses them ends. No update follows.
  void Cancel(uint64_t sequence_id);
  void BeginDrain() { draining_ = true; }
  void OnCpuWorkerUp() { cpu_worker_.OnUp(); }
  void OnCpuWorkerDown(int64_t now_us) { cpu_worker_.OnDown(now_us); }
  void OnCpuBlocksReady(int32_t count) { blocks_.SetCpuBlocksReady(count); }
  // Better costs than those of the start; corrections begin anew. Only between steps.
  void ReplaceCostModel(std::shared_ptr<const CostModel> cost_model);
  // For a step that the runner is given beside PlanStep, while the engine is idle: its epoch.
  uint64_t TakeEpoch() { return ++input_.epoch; }
  bool cpu_usable(int64_t now_us) const { return cpu_worker_.IsUsable(now_us); }
  int32_t cpu_blocks_ready() const { return blocks_.pool(Tier::kCpu).usable_blocks(); }
  // Whether the policy may put sequences there and there is a pool.
  bool uses_cpu_tier() const {
    return scheduler_.config().policy != OffloadPolicy::kOff && limits_.num_cpu_blocks > 0;
  }

  // The next step, its blocks reserved; null when there is nothing to run now. The input stays
  // valid and unchanged until Commit or Abort.
  const StepInput* PlanStep(int64_t now_us);
  // Publishes the step's tokens.
  void Commit(const StepOutput& output, int64_t now_us);
  // Leaves every sequence as it was before the step. Unavailable: the step is planned anew, without
  // the CPU tier for a moment if it took part; everything else, and what is Unavailable again and
  // again without the CPU tier, ends the step's sequences with the error, so that no failure
  // repeats for ever.
  void Abort(const absl::Status& reason, int64_t now_us);
  // Ends every sequence with `reason` (kAbort); only between steps.
  void EndAll(const absl::Status& reason);

  // What happened since the last call, in order.
  std::vector<std::pair<uint64_t, GenerationUpdate>> TakeUpdates();
  // Of the last committed step.
  const StepObservation& last_observation() const { return observation_; }
  const StepPlan& last_plan() const { return plan_; }
  // When something has to be looked at although nothing happens; 0: never.
  int64_t NextWakeUs(int64_t now_us) const;
  bool idle() const { return sequences_.empty(); }
  // Degraded states, for the log: the guard paused offloading; the CPU worker was given up.
  bool offload_paused(int64_t now_us) const { return !guard_.OffloadPays(now_us); }
  bool cpu_worker_given_up() const { return cpu_worker_.given_up(); }
  EngineSnapshot snapshot(int64_t now_us) const;
  CoreSnapshot Books() const;
  absl::Status CheckInvariants() const { return CheckCoreInvariants(Books()); }

 private:
  // A waiting sequence that was passed by higher priorities this long goes before all of them.
  static constexpr int64_t kPriorityAgeingUs = 30'000'000;
  static constexpr int kMaxPlansPerStep = 4;
  static constexpr uint64_t kStudyEverySteps = 16;
  static constexpr int kMaxUnexplainedAborts = 3;

  // engine_core.cc
  SubmitResult Refusal(const GenerationRequest& request) const;
  SchedulerState StateFor(int64_t now_us);
  SchedulerState PolicyState() const;
  void LearnConcurrency(const PoolState& pool);
  void StudyIfDue(SchedulerState* state);
  void InsertWaiting(Sequence* sequence);
  void RemoveWaiting(const Sequence& sequence);
  void ExpireDeadlines(int64_t now_us);
  void AgeWaiting(int64_t now_us);
  void GiveUpCpuWorker();
  void EndImpossible(int64_t now_us);
  void Recompute(Sequence* sequence);
  void Remove(uint64_t sequence_id);
  void EndWithError(Sequence* sequence, const absl::Status& error);
  Sequence* Find(uint64_t sequence_id);

  // Sums over the sequences that wait or run.
  struct Present {
    double sequences = 0;
    double decodes = 0;  // sequences that decode
    double prompt_tokens = 0;
    double prompt_squares = 0;
    double max_output = 0;
    void Add(const Sequence& sequence);
  };
  WorkloadMix MixNow(const Present& present) const;

  // engine_core_step.cc
  bool MakePlan(int64_t now_us);
  void ReserveBlocks();
  void BuildInput();
  SequenceWork MakeWork(const PlannedWork& planned, const Sequence& sequence) const;
  void AddPromptLogprobs(const Sequence& sequence, SequenceWork* work) const;
  void FinishStep();
  void CommitMoves(int64_t now_us);
  void CommitWork(const PlannedWork& planned, const SequenceOutput* output);
  void Publish(Sequence* sequence, const SequenceOutput& output);
  void Learn(const StepOutput& output, int64_t now_us);
  void LearnMix(const Sequence& sequence, bool has_ended);
  bool StepUsesCpu() const;
  std::vector<uint64_t> SequencesOfStep() const;

  const EngineOptions options_;
  const RunnerLimits limits_;
  Scheduler scheduler_;
  DualBlockManager blocks_;
  CpuWorkerState cpu_worker_;
  OffloadGuard guard_;
  bool guard_paused_ = false;
  Corrections corrections_;
  WorkloadMix mix_;
  int64_t crowded_steps_ = 0;  // at whose beginning the next sequence waited for room on the device
  double mean_on_device_ = 0;  // sequences, in these
  // New ones that may each take the place of one that ends; a crowd counts as a few.
  static constexpr int64_t kMostReplacing = 4;
  int64_t come_ = 0;
  int64_t mixed_ = 0;  // sequences that it was learned from: those that ended, before that the new
  bool mix_is_of_ended_ = false;
  int64_t decoded_since_end_ = 0;  // tokens, of all sequences, since one of them left
  SteadyState steady_;
  uint64_t studied_at_ = 0;  // step
  bool studied_with_cpu_ = false;

  absl::flat_hash_map<uint64_t, std::unique_ptr<Sequence>> sequences_;
  std::vector<const SequenceView*> waiting_;   // oldest first
  std::vector<const SequenceView*> resident_;  // made for each plan
  uint64_t next_id_ = 1;
  uint64_t arrivals_ = 0;
  bool has_deadlines_ = false;
  bool has_priorities_ = false;
  bool draining_ = false;

  bool in_step_ = false;
  StepPlan plan_;
  StepInput input_;
  int64_t step_started_us_ = 0;
  std::vector<uint64_t> admitted_;  // by the running step
  StepMode mode_ = StepMode::kGpuOnly;
  int unexplained_aborts_ = 0;

  std::vector<std::pair<uint64_t, GenerationUpdate>> updates_;
  StepObservation observation_;
  EngineSnapshot counters_;  // its counter fields only
};

}  // namespace tandem::gpu_worker
