#include "gpu_worker/cost_model/cost_profiler.h"

#include <algorithm>
#include <utility>

namespace tandem::gpu_worker {
namespace {

// Dense where devices leave the part in which reading weights decides, which is below 512 rows.
constexpr int64_t kRows[] = {1,   2,   4,   8,   16,  24,  32,  48,  64,   96,   128,  160,
                             192, 224, 256, 320, 384, 448, 512, 768, 1024, 1536, 2048, 4096};
constexpr int64_t kChunks[] = {16, 64, 256, 1024};
constexpr int64_t kContexts[] = {0, 256, 1024, 4096, 16384};
constexpr int64_t kSequences[] = {1, 2, 4, 8, 16, 32, 64, 128};
constexpr int64_t kTokens[] = {32, 256, 1024, 4096};
constexpr int64_t kCopies[] = {16, 128, 512, 2048};
// Device rows and CPU decodes of the step that shows how far both sides overlap.
constexpr int64_t kOverlapRows = 64;
constexpr int64_t kOverlapDecodes = 4;
constexpr int64_t kOverlapTokens = 256;

constexpr double kShortStepUs = 3e4;  // longer ones are run twice only
constexpr int32_t kMostFailures = 5;
constexpr double kSmallestUs = 1e-3;  // tables hold no zero

}  // namespace

CostProfiler::CostProfiler(const RunnerLimits& limits, std::shared_ptr<const CostModel> guess,
                           const ProfilerOptions& options)
    : limits_(limits), guess_(std::move(guess)), options_(options), predictor_(guess_) {
  tokens_.assign(static_cast<size_t>(std::max(limits_.max_batched_tokens, 1)), 0);
  greedy_.temperature = 0;
  AddPoints();
  next_ = 0;
  while (!done() && points_[next_].is_left_out) {
    ++next_;
  }
}

int64_t CostProfiler::LongestContext() const {
  const int64_t pool = int64_t{limits_.num_gpu_blocks} * limits_.gpu_block_tokens;
  return options_.max_model_len > 0 ? std::min<int64_t>(pool, options_.max_model_len) : pool;
}

void CostProfiler::AddPoints() {
  const bool has_cpu = limits_.num_cpu_blocks > 0;
  for (const int64_t rows : kRows) {
    if (rows <= limits_.max_batched_tokens) {
      AddPoint(Term::kLinear, rows, 0);
    }
  }
  if (has_cpu) {
    AddGrid(Term::kCpuDecode, kSequences, kTokens);
  }
  AddGrid(Term::kGpuDecode, kSequences, kTokens);
  AddGrid(Term::kPrefill, kChunks, kContexts);
  if (has_cpu) {
    for (const int64_t tokens : kCopies) {
      AddPoint(Term::kCopy, tokens, 0);
    }
    AddPoint(Term::kOverlap, kOverlapRows, kOverlapDecodes);
  }
}

void CostProfiler::AddGrid(Term term, std::span<const int64_t> xs, std::span<const int64_t> ys) {
  for (const int64_t x : xs) {
    for (const int64_t y : ys) {
      AddPoint(term, x, y);
    }
  }
}

void CostProfiler::AddPoint(Term term, int64_t x, int64_t y) {
  Point point;
  point.term = term;
  point.x = x;
  point.y = y;
  if (IsPossible(point)) {
    BuildStep(point);
    point.expected_us = predictor_.Predict(LoadOf(step_), Corrections()).total_us;
  } else {
    point.is_left_out = true;
  }
  // The first point of a term is always measured: the rest of its table hangs on it.
  const bool is_first = points_.empty() || points_.back().term != term;
  point.is_left_out |= !is_first && point.expected_us > options_.longest_step_us;
  points_.push_back(point);
}

// Whether pools, slots and the model's length allow the step.
bool CostProfiler::IsPossible(const Point& point) const {
  const auto blocks = [](int64_t tokens, int64_t block) { return (tokens + block - 1) / block; };
  const int64_t gpu_each = blocks(std::max<int64_t>(point.y, 1), limits_.gpu_block_tokens);
  const int64_t cpu_each = blocks(std::max<int64_t>(point.y, 1), limits_.cpu_block_tokens);
  const bool too_long = options_.max_model_len > 0 && point.y > options_.max_model_len;
  switch (point.term) {
    case Term::kLinear:
      return LongestContext() >= 1;
    case Term::kPrefill:
      return point.x <= limits_.max_batched_tokens && point.x + point.y <= LongestContext();
    case Term::kGpuDecode:
      return !too_long && point.x <= limits_.max_batched_tokens &&
             point.x * gpu_each <= limits_.num_gpu_blocks;
    case Term::kCpuDecode:
      return !too_long && point.x <= limits_.max_batched_tokens &&
             point.x <= limits_.max_cpu_rows_per_slot &&
             point.x * cpu_each <= limits_.num_cpu_blocks &&
             (limits_.max_cpu_table_entries_per_slot <= 0 ||
              point.x * cpu_each <= limits_.max_cpu_table_entries_per_slot);
    case Term::kCopy:
      return point.x <= LongestContext() &&
             blocks(point.x, limits_.cpu_block_tokens) <= limits_.num_cpu_blocks;
    case Term::kOverlap:
      return point.x + point.y <= limits_.max_batched_tokens && point.x <= LongestContext() &&
             point.y <= limits_.max_cpu_rows_per_slot &&
             point.y * blocks(kOverlapTokens, limits_.cpu_block_tokens) <= limits_.num_cpu_blocks &&
             (options_.max_model_len <= 0 || kOverlapTokens <= options_.max_model_len);
  }
  return false;
}

std::span<const int32_t> CostProfiler::NewTable(int64_t first, int64_t blocks,
                                                int64_t pool_blocks) {
  std::vector<int32_t>& table = tables_.emplace_back();
  for (int64_t i = 0; i < blocks; ++i) {
    table.push_back(static_cast<int32_t>((first + i) % pool_blocks));
  }
  return table;
}

// `rows` rows as prompts that lie in the pool one behind the other; what does not fit shares blocks
// with what does, because only its dense part is looked at.
void CostProfiler::AddPrefills(int64_t rows, int64_t context) {
  const int64_t most = std::max<int64_t>(LongestContext() - context, 1);
  for (int64_t left = rows; left > 0;) {
    const int64_t chunk = std::min(left, most);
    SequenceWork work;
    work.sequence_id = step_.sub_batch[0].size() + 1;
    work.kind = WorkKind::kPrefillGpu;
    work.tokens = std::span<const int32_t>(tokens_).first(static_cast<size_t>(chunk));
    work.start_position = static_cast<int32_t>(context);
    const int64_t blocks =
        (context + chunk + limits_.gpu_block_tokens - 1) / limits_.gpu_block_tokens;
    work.block_table = NewTable(0, blocks, limits_.num_gpu_blocks);
    SampleRequest sample;
    sample.params = &greedy_;
    work.sample = sample;
    step_.sub_batch[0].push_back(work);
    left -= chunk;
  }
}

void CostProfiler::AddDecodeRows(int sub_batch, WorkKind kind, int64_t sequences, int64_t tokens) {
  const bool on_gpu = kind == WorkKind::kDecodeGpu;
  const int64_t block = on_gpu ? limits_.gpu_block_tokens : limits_.cpu_block_tokens;
  const int64_t pool = on_gpu ? limits_.num_gpu_blocks : limits_.num_cpu_blocks;
  const int64_t each = (tokens + block - 1) / block;
  for (int64_t i = 0; i < sequences; ++i) {
    SequenceWork work;
    work.sequence_id = 1000 + static_cast<uint64_t>(i);
    work.kind = kind;
    work.tokens = std::span<const int32_t>(tokens_).first(1);
    work.start_position = static_cast<int32_t>(tokens - 1);
    work.block_table = NewTable(i * each, each, pool);
    SampleRequest sample;
    sample.params = &greedy_;
    work.sample = sample;
    step_.sub_batch[sub_batch].push_back(work);
  }
}

void CostProfiler::BuildStep(const Point& point) {
  tables_.clear();
  step_.copies.clear();
  step_.sub_batch[0].clear();
  step_.sub_batch[1].clear();
  step_.mode = StepMode::kGpuOnly;
  switch (point.term) {
    case Term::kLinear:
      AddPrefills(point.x, 0);
      break;
    case Term::kPrefill:
      AddPrefills(point.x, point.y);
      break;
    case Term::kGpuDecode:
      AddDecodeRows(0, WorkKind::kDecodeGpu, point.x, point.y);
      break;
    case Term::kCpuDecode:
      step_.mode = StepMode::kUnified;
      AddDecodeRows(0, WorkKind::kDecodeCpu, point.x, point.y);
      break;
    case Term::kCopy: {
      PoolCopy copy;
      copy.to_cpu = true;
      copy.num_tokens = point.x;
      copy.gpu_blocks =
          NewTable(0, (point.x + limits_.gpu_block_tokens - 1) / limits_.gpu_block_tokens,
                   limits_.num_gpu_blocks);
      copy.cpu_blocks =
          NewTable(0, (point.x + limits_.cpu_block_tokens - 1) / limits_.cpu_block_tokens,
                   limits_.num_cpu_blocks);
      step_.copies.push_back(copy);
      break;
    }
    case Term::kOverlap:
      step_.mode = StepMode::kAsymmetric;
      AddPrefills(point.x, 0);
      AddDecodeRows(1, WorkKind::kDecodeCpu, point.y, kOverlapTokens);
      break;
  }
}

bool CostProfiler::needs_cpu_worker() const {
  return !done() && (points_[next_].term == Term::kCpuDecode ||
                     points_[next_].term == Term::kCopy || points_[next_].term == Term::kOverlap);
}

StepInput* CostProfiler::Next() {
  if (done()) {
    return nullptr;
  }
  BuildStep(points_[next_]);
  return &step_;
}

double CostProfiler::MeasuredUs(const Point& point, const StepOutput& output) const {
  const StepTimings& t = output.timings;
  const double layers = guess_->num_layers();
  switch (point.term) {
    case Term::kLinear:
      return t.linear_us / layers;
    case Term::kPrefill:
      return t.prefill_us / layers;
    case Term::kGpuDecode:
      return t.gpu_decode_us / layers;
    case Term::kCpuDecode:
      // Nothing hides it: the device waits from the last row's way out to the first one's back.
      return t.cpu_decode_us / layers - guess_->TransferUs(point.x);
    case Term::kCopy:
      return t.copies_us / layers;
    case Term::kOverlap:
      return t.total_us;
  }
  return 0;
}

// A guess of an idle machine says little when others load it.
bool CostProfiler::IsTooLong(size_t index) const {
  const bool is_first = index == 0 || points_[index].term != points_[index - 1].term;
  return !is_first && points_[index].expected_us * std::min(slowdowns_[0], slowdowns_[1]) >
                          options_.longest_step_us;
}

void CostProfiler::GoOn() {
  const Point& point = points_[next_];
  if (point.runs > 0 && point.expected_us > 0) {
    slowdowns_[0] = slowdowns_[1];
    slowdowns_[1] = std::max(point.total_us / point.expected_us, 1.0);
  }
  do {
    ++next_;
  } while (!done() && (points_[next_].is_left_out || IsTooLong(next_)));
  if (spent_us_ >= options_.budget_us) {
    next_ = points_.size();
  }
}

void CostProfiler::Record(const StepOutput& output) {
  if (done()) {
    return;
  }
  Point& point = points_[next_];
  const double us = std::max(MeasuredUs(point, output), kSmallestUs);
  spent_us_ += std::max(output.timings.total_us, 0.0);
  measured_ += point.runs == 0 ? 1 : 0;
  const double total_us = output.timings.total_us;
  point.us = point.runs == 0 ? us : std::min(point.us, us);
  point.total_us = point.runs == 0 ? total_us : std::min(point.total_us, total_us);
  ++point.runs;
  const int32_t wanted = total_us < kShortStepUs               ? options_.repetitions
                         : total_us < options_.longest_step_us ? 2
                                                               : 1;
  if (point.runs >= std::min(options_.repetitions, wanted)) {
    GoOn();
  }
}

void CostProfiler::Fail(const absl::Status& status) {
  if (done()) {
    return;
  }
  Point& point = points_[next_];
  if (absl::IsUnavailable(status) && ++point.failures < kMostFailures) {
    return;
  }
  GoOn();
}

double CostProfiler::GuessUs(const Point& point) const {
  switch (point.term) {
    case Term::kLinear:
      return guess_->LinearUs(point.x);
    case Term::kPrefill:
      return guess_->PrefillUs(point.x, point.y);
    case Term::kGpuDecode:
      return guess_->GpuDecodeUs(point.x, point.x * point.y);
    case Term::kCpuDecode:
      return guess_->CpuDecodeUs(point.x, point.x * point.y);
    case Term::kCopy:
      return guess_->CopyUs(point.x);
    case Term::kOverlap:
      return 0;
  }
  return 0;
}

// Measured, or guessed and scaled as the nearest measured point before it in the term's list.
double CostProfiler::FilledUs(const Point& point) const {
  if (point.us > 0) {
    return point.us;
  }
  double ratio = 1;
  for (const Point& other : points_) {
    const double guess_us = GuessUs(other);
    if (other.term == point.term && other.us > 0 && guess_us > 0) {
      ratio = other.us / guess_us;
    }
    if (&other == &point && ratio != 1) {
      break;
    }
  }
  return std::max(ratio * GuessUs(point), kSmallestUs);
}

CostCurve CostProfiler::CurveOf(Term term) const {
  CostCurve curve;
  for (const Point& point : points_) {
    if (point.term == term) {
      curve.at.push_back(static_cast<double>(point.x));
      curve.us.push_back(FilledUs(point));
    }
  }
  return curve;
}

CostGrid CostProfiler::GridOf(Term term) const {
  CostGrid grid;
  for (const Point& point : points_) {
    if (point.term != term) {
      continue;
    }
    const auto x = static_cast<double>(point.x);
    const auto y = static_cast<double>(point.y);
    if (grid.rows.empty() || grid.rows.back() != x) {
      grid.rows.push_back(x);
    }
    if (grid.rows.size() == 1) {
      grid.columns.push_back(y);
    }
    grid.us.push_back(FilledUs(point));
  }
  return grid;
}

// Between what the step would take with nothing hidden (0) and with everything (1).
double CostProfiler::Overlap(const CostTables& tables) const {
  const Point& point = points_.back();
  if (point.term != Term::kOverlap || point.us <= 0) {
    return tables.overlap;
  }
  StepLoad load;
  load.mode = StepMode::kAsymmetric;
  load.sub_batch[0].rows = point.x;
  load.sub_batch[0].prefills.push_back({point.x, 0});
  load.sub_batch[1].rows = point.y;
  load.sub_batch[1].cpu_decodes = point.y;
  load.sub_batch[1].cpu_context_tokens = point.y * kOverlapTokens;
  double total_us[2];
  for (int overlapped = 0; overlapped < 2; ++overlapped) {
    CostTables with = tables;
    with.overlap = overlapped;
    total_us[overlapped] =
        Predictor(MakeTableCostModel(with, guess_)).Predict(load, Corrections()).total_us;
  }
  const double between_us = total_us[0] - total_us[1];
  return between_us < 0.02 * total_us[1]
             ? tables.overlap
             : std::clamp((total_us[0] - point.us) / between_us, 0.0, 1.0);
}

CostTables CostProfiler::Tables() const {
  CostTables tables;
  tables.num_layers = guess_->num_layers();
  tables.launch_us = guess_->LaunchUs();
  tables.overlap = guess_->overlap();
  tables.linear = CurveOf(Term::kLinear);
  tables.prefill = GridOf(Term::kPrefill);
  tables.gpu_decode = GridOf(Term::kGpuDecode);
  if (limits_.num_cpu_blocks > 0) {
    tables.cpu_decode = GridOf(Term::kCpuDecode);
    tables.copy = CurveOf(Term::kCopy);
    for (const int64_t rows : {int64_t{1}, int64_t{64}}) {
      tables.transfer.at.push_back(static_cast<double>(rows));
      tables.transfer.us.push_back(std::max(guess_->TransferUs(rows), kSmallestUs));
    }
    tables.overlap = Overlap(tables);
  }
  return tables;
}

}  // namespace tandem::gpu_worker
