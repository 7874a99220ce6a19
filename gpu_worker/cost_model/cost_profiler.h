#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "gpu_worker/cost_model/cost_tables.h"
#include "gpu_worker/cost_model/predictor.h"
#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

struct ProfilerOptions {
  int32_t max_model_len = 0;  // > 0: no position beyond
  double budget_us = 15e6;    // of measured time in all
  // A point that is expected to take longer is left out, because a request that comes waits for
  // one; expected from the guess and from how far the last two points took longer than theirs.
  double longest_step_us = 3e5;
  int32_t repetitions = 3;  // of short points; the fastest counts
};

// Makes cost tables from real steps: it says which synthetic step to run next on an idle pipeline,
// is told how long the terms took, and fills the tables. What the device, the CPU attention worker
// and the exchange really take is all in there, whatever they are. Pure; one thread. Steps
// overwrite the pools' contents.
class CostProfiler {
 public:
  // `guess` orders and bounds the points, and stands in for those that are not measured.
  CostProfiler(const RunnerLimits& limits, std::shared_ptr<const CostModel> guess,
               const ProfilerOptions& options);

  // The next step; null when all is measured. Valid until Record or Fail. The caller sets the
  // epoch.
  StepInput* Next();
  void Record(const StepOutput& output);
  // The step failed: without the CPU worker the same one is tried again later, else the point is
  // left out.
  void Fail(const absl::Status& status);

  bool done() const { return next_ >= points_.size(); }
  // Whether the next step needs the CPU attention worker.
  bool needs_cpu_worker() const;
  double measured_us() const { return spent_us_; }
  size_t measured_points() const { return measured_; }
  CostTables Tables() const;

 private:
  enum class Term { kLinear, kPrefill, kGpuDecode, kCpuDecode, kCopy, kOverlap };
  struct Point {
    Term term = Term::kLinear;
    int64_t x = 0;           // rows, chunk, sequences or tokens
    int64_t y = 0;           // context, or tokens of each sequence
    double expected_us = 0;  // of the whole step
    double us = 0;           // of the term in one layer (kOverlap: of the step); 0: not measured
    double total_us = 0;     // of the whole step, the shortest run
    int32_t runs = 0;
    int32_t failures = 0;
    bool is_left_out = false;  // its place in the table comes from the guess
  };

  void AddPoints();
  void AddGrid(Term term, std::span<const int64_t> xs, std::span<const int64_t> ys);
  void AddPoint(Term term, int64_t x, int64_t y);
  bool IsPossible(const Point& point) const;
  bool IsTooLong(size_t index) const;
  void GoOn();
  int64_t LongestContext() const;
  double GuessUs(const Point& point) const;
  double MeasuredUs(const Point& point, const StepOutput& output) const;
  void BuildStep(const Point& point);
  void AddPrefills(int64_t rows, int64_t context);
  void AddDecodeRows(int sub_batch, WorkKind kind, int64_t sequences, int64_t tokens);
  std::span<const int32_t> NewTable(int64_t first, int64_t blocks, int64_t pool_blocks);
  double FilledUs(const Point& point) const;
  CostCurve CurveOf(Term term) const;
  CostGrid GridOf(Term term) const;
  double Overlap(const CostTables& tables) const;

  const RunnerLimits limits_;
  const std::shared_ptr<const CostModel> guess_;
  const ProfilerOptions options_;
  const Predictor predictor_;
  std::vector<Point> points_;
  size_t next_ = 0;
  double spent_us_ = 0;
  size_t measured_ = 0;
  double slowdowns_[2] = {1, 1};  // of the last two points, measured over expected; 1 and more

  StepInput step_;
  std::vector<int32_t> tokens_;              // zeros, as many as a step has rows
  std::deque<std::vector<int32_t>> tables_;  // block tables of the step
  SamplingParams greedy_;
};

}  // namespace tandem::gpu_worker
