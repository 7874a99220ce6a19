#include "gpu_worker/engine/cost_measurement.h"

#include <algorithm>
#include <utility>

#include "common/base/files.h"
#include "common/base/log.h"
#include "common/base/sha256.h"
#include "common/base/strings.h"

namespace tandem::gpu_worker {
namespace {

constexpr size_t kMostFileBytes = size_t{1} << 20;

}  // namespace

CostMeasurement::CostMeasurement(const EngineOptions& options, const RunnerLimits& limits,
                                 std::shared_ptr<const CostModel> guess)
    : options_(options),
      limits_(limits),
      guess_(std::move(guess)),
      is_pending_(options.measure_costs) {}

std::string CostMeasurement::Key() const {
  return base::StrCat(options_.cost_key,
                      "; CPU attention: ", limits_.num_cpu_blocks > 0 ? cpu_worker_ : "none");
}

std::string CostMeasurement::Path() const {
  return options_.cost_folder.empty() ? ""
                                      : base::StrCat(options_.cost_folder, "/costs-",
                                                     base::Sha256Hex(Key()).substr(0, 16), ".txt");
}

bool CostMeasurement::IsDue(const Moment& moment) {
  if (!is_pending_ || moment.now_us < busy_until_us_) {
    return false;
  }
  const bool with_cpu = moment.uses_cpu_tier && limits_.num_cpu_blocks > 0;
  if (!has_begun_) {
    if (with_cpu && (!moment.cpu_usable || moment.cpu_blocks_ready < limits_.num_cpu_blocks)) {
      // Its worker comes soon, and who touches the rest of its pool takes a core from who is to be
      // measured; until then the first guess serves.
      return false;
    }
    Begin(with_cpu ? moment.cpu_blocks_ready : 0);
    return true;
  }
  return profiler_ == nullptr || !profiler_->needs_cpu_worker() || moment.cpu_usable;
}

void CostMeasurement::Begin(int32_t cpu_blocks) {
  has_begun_ = true;
  limits_.num_cpu_blocks = cpu_blocks;
  if (Load()) {
    return;
  }
  ProfilerOptions options;
  options.max_model_len = options_.max_model_len;
  profiler_ = std::make_unique<CostProfiler>(limits_, guess_, options);
}

// What stands on the disk, if it was measured for exactly this.
bool CostMeasurement::Load() {
  if (options_.cost_folder.empty()) {
    return false;
  }
  absl::StatusOr<std::string> text = base::ReadFileTail(Path(), 0, kMostFileBytes);
  if (absl::IsNotFound(text.status())) {
    return false;
  }
  absl::StatusOr<CostTables> tables =
      text.ok() ? ReadCostTables(*text, Key()) : absl::StatusOr<CostTables>(text.status());
  if (tables.ok() && tables->num_layers != guess_->num_layers()) {
    tables = absl::FailedPreconditionError("they are of a model with another number of layers");
  }
  if (!tables.ok()) {
    base::LogWarning("kept cost tables are not used; costs are measured anew",
                     {{"file", Path()}, {"error", tables.status().ToString()}});
    return false;
  }
  base::LogInfo("cost tables read", {{"file", Path()}});
  model_ = MakeTableCostModel(*tables, guess_);
  is_pending_ = false;
  return true;
}

StepInput* CostMeasurement::Next() { return profiler_ == nullptr ? nullptr : profiler_->Next(); }

void CostMeasurement::Record(const absl::StatusOr<StepOutput>& output) {
  if (output.ok()) {
    profiler_->Record(*output);
  } else {
    profiler_->Fail(output.status());
  }
  if (profiler_->done()) {
    Finish();
  }
}

void CostMeasurement::Finish() {
  is_pending_ = false;
  const CostTables tables = profiler_->Tables();
  const auto points = static_cast<int64_t>(profiler_->measured_points());
  const auto ms = static_cast<int64_t>(profiler_->measured_us() / 1e3);
  profiler_.reset();
  if (const absl::Status status = ValidateCostTables(tables); !status.ok() || points == 0) {
    base::LogWarning("costs could not be measured; the first guess goes on",
                     {{"error", status.ToString()}, {"points", points}});
    return;
  }
  base::LogInfo("cost tables measured", {{"points", points}, {"ms", ms}, {"file", Path()}});
  model_ = MakeTableCostModel(tables, guess_);
  if (options_.cost_folder.empty()) {
    return;
  }
  if (const absl::Status written = base::WriteFileByRename(Path(), WriteCostTables(tables, Key()));
      !written.ok()) {
    base::LogWarning("cost tables were not kept",
                     {{"file", Path()}, {"error", written.ToString()}});
  }
}

std::shared_ptr<const CostModel> CostMeasurement::TakeModel() {
  return std::exchange(model_, nullptr);
}

}  // namespace tandem::gpu_worker
