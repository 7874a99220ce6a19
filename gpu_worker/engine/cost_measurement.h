#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "gpu_worker/cost_model/cost_profiler.h"
#include "gpu_worker/engine/engine.h"

namespace tandem::gpu_worker {

// When costs are measured and where they are kept: read from the disk if they are there, else
// measured while the engine is idle, point by point, and written. Not thread-safe.
class CostMeasurement {
 public:
  CostMeasurement(const EngineOptions& options, const RunnerLimits& limits,
                  std::shared_ptr<const CostModel> guess);

  void SetCpuWorker(const std::string& description) { cpu_worker_ = description; }
  // The engine worked: it has to rest for a moment before the next point.
  void OnWork(int64_t now_us) { busy_until_us_ = now_us + kRestUs; }

  struct Moment {
    int64_t now_us = 0;
    bool uses_cpu_tier = false;  // by its policy
    bool cpu_usable = false;     // the CPU attention worker is there
    int32_t cpu_blocks_ready = 0;
  };
  bool is_pending() const { return is_pending_; }
  // Whether Next and Record, or TakeModel, have something to do now. Only when the engine is idle.
  bool IsDue(const Moment& moment);
  StepInput* Next();
  void Record(const absl::StatusOr<StepOutput>& output);
  // Once, when the tables are complete.
  std::shared_ptr<const CostModel> TakeModel();

 private:
  static constexpr int64_t kRestUs = 300'000;

  std::string Key() const;
  std::string Path() const;
  void Begin(int32_t cpu_blocks);
  bool Load();
  void Finish();

  const EngineOptions options_;
  RunnerLimits limits_;
  const std::shared_ptr<const CostModel> guess_;
  std::string cpu_worker_;
  bool is_pending_;
  bool has_begun_ = false;
  int64_t busy_until_us_ = 0;
  std::unique_ptr<CostProfiler> profiler_;
  std::shared_ptr<const CostModel> model_;
};

}  // namespace tandem::gpu_worker
