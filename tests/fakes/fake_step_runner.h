#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <mutex>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_set.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// A step runner whose "model" is a hash: the token after a sequence depends on all its tokens and
// nothing else. It keeps both KV pools as a real one would: each slot holds the token that was
// stored there and the hash of everything up to it, and each row must find exactly its own
// sequence's history behind its block table. Mistakes of the engine are collected in errors().
// Thread rules: one thread calls Run; the setters may be called by others.
class FakeStepRunner : public StepRunner {
 public:
  explicit FakeStepRunner(const RunnerLimits& limits);

  const RunnerLimits& limits() const override { return limits_; }
  MeasuredRates MeasureRates() override { return rates_; }
  absl::StatusOr<StepOutput> Run(const StepInput& input) override;

  void set_rates(const MeasuredRates& rates) { rates_ = rates; }
  // While down, steps that use the CPU tier fail with Unavailable after doing part of their work.
  void SetCpuWorkerUp(bool up) { cpu_worker_up_ = up; }
  // The next step does part of its work and fails with this.
  void FailNext(absl::Status status);
  // Called at the start of each Run, on its thread.
  void set_before_run(std::function<void(const StepInput&)> hook) { before_run_ = std::move(hook); }
  // Timings that steps report.
  void set_timer(std::function<StepTimings(const StepInput&)> timer) { timer_ = std::move(timer); }

  // What the model generates after `tokens`.
  static int32_t NextToken(std::span<const int32_t> tokens, std::span<const int32_t> forbidden,
                           int32_t vocab_size);
  static float PromptLogprob(std::span<const int32_t> tokens, int32_t next);

  std::vector<std::string> errors() const;
  int64_t steps_done() const { return steps_done_; }

 private:
  struct Slot {
    int32_t token = -1;
    uint64_t hash = 0;  // of the sequence up to this token
  };
  struct Pool {
    int32_t num_blocks = 0;
    int32_t block_tokens = 1;
    std::vector<Slot> slots;
    Slot& at(std::span<const int32_t> table, int64_t position);
  };

  void CheckStep(const StepInput& input);
  void CheckSubBatch(const StepInput& input, int x);
  bool CheckTable(const SequenceWork& work, const Pool& pool);
  void RunCopy(const PoolCopy& copy);
  void Constrain(const SampleRequest& sample, SequenceOutput* out) const;
  void RunWork(const SequenceWork& work, StepOutput* output);
  void DoPart(const StepInput& input);
  void Error(std::string message);

  const RunnerLimits limits_;
  MeasuredRates rates_;
  Pool gpu_;
  Pool cpu_;
  uint64_t last_epoch_ = 0;
  std::atomic<bool> cpu_worker_up_ = true;
  std::atomic<int64_t> steps_done_ = 0;
  std::function<void(const StepInput&)> before_run_;
  std::function<StepTimings(const StepInput&)> timer_;
  mutable std::mutex mutex_;
  std::vector<absl::Status> failures_;
  std::vector<std::string> errors_;
};

}  // namespace tandem::gpu_worker
