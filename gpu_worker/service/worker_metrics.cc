#include "gpu_worker/service/worker_metrics.h"

namespace tandem::gpu_worker {
namespace {

// What the engine compares with its predictions; StepObservation names the same.
constexpr const char* kTerms[] = {"linear",     "prefill",  "gpu_decode",
                                  "cpu_decode", "transfer", "total"};

std::vector<double> RatioBounds() {
  return {0.1, 0.2, 0.33, 0.5, 0.67, 0.8, 0.9, 1.0, 1.1, 1.25, 1.5, 2.0, 3.0, 5.0, 10.0};
}

// A snapshot's totals and levels in the order of the series below.
std::vector<uint64_t> TotalsOf(const EngineSnapshot& s) {
  return {s.steps[0],
          s.steps[1],
          s.steps[2],
          s.graph_steps,
          s.graph_captures,
          s.prompt_tokens,
          s.cached_tokens,
          s.generated_tokens,
          s.decode_tokens_gpu,
          s.decode_tokens_cpu,
          s.swap_outs,
          s.swap_ins,
          s.recomputes,
          s.aborted_steps_cpu_worker_lost,
          s.aborted_steps_other,
          s.offload_pauses,
          s.offload_resumes};
}

std::vector<double> LevelsOf(const EngineSnapshot& s) {
  return {double(s.waiting),
          double(s.prefill),
          double(s.gpu_decode),
          double(s.cpu_decode),
          double(s.moving),
          double(s.gpu_blocks_free),
          double(s.gpu_blocks_used),
          double(s.gpu_blocks_cached),
          double(s.cpu_blocks_free),
          double(s.cpu_blocks_used),
          double(s.cpu_blocks_cached),
          double(s.cpu_attention_up),
          double(s.offload_enabled)};
}

struct Series {
  const char* name;
  const char* help;
  telemetry::Labels labels;
};

std::vector<Series> TotalSeries() {
  const char* steps = "tandem_worker_steps_total";
  const char* tokens = "tandem_worker_tokens_total";
  const char* decodes = "tandem_worker_decode_tokens_total";
  const char* moves = "tandem_worker_moves_total";
  const char* aborted = "tandem_worker_aborted_steps_total";
  const char* guard = "tandem_worker_offload_switches_total";
  const char* guard_help = "Offloading switched off because it did not pay, and on again.";
  const char* steps_help = "Steps that were committed.";
  const char* tokens_help = "Tokens prefilled, taken from a cache, generated.";
  const char* decodes_help = "Decode tokens by the tier that attended.";
  const char* moves_help = "Moves of sequences between the pools, and recomputations.";
  const char* aborted_help = "Steps that were given up and repeated.";
  return {{steps, steps_help, {{"mode", "gpu_only"}}},
          {steps, steps_help, {{"mode", "unified"}}},
          {steps, steps_help, {{"mode", "asymmetric"}}},
          {"tandem_worker_graph_steps_total", "Steps whose layers ran as a CUDA graph.", {}},
          {"tandem_worker_graph_captures_total", "CUDA graphs that were captured.", {}},
          {tokens, tokens_help, {{"kind", "prompt"}}},
          {tokens, tokens_help, {{"kind", "cached"}}},
          {tokens, tokens_help, {{"kind", "generated"}}},
          {decodes, decodes_help, {{"tier", "gpu"}}},
          {decodes, decodes_help, {{"tier", "cpu"}}},
          {moves, moves_help, {{"kind", "swap_out"}}},
          {moves, moves_help, {{"kind", "swap_in"}}},
          {moves, moves_help, {{"kind", "recompute"}}},
          {aborted, aborted_help, {{"reason", "cpu_worker_lost"}}},
          {aborted, aborted_help, {{"reason", "other"}}},
          {guard, guard_help, {{"to", "off"}}},
          {guard, guard_help, {{"to", "on"}}}};
}

std::vector<Series> LevelSeries() {
  const char* sequences = "tandem_worker_sequences";
  const char* blocks = "tandem_worker_kv_blocks";
  const char* sequences_help = "Sequences by state.";
  const char* blocks_help = "KV blocks by pool and state.";
  return {{sequences, sequences_help, {{"state", "waiting"}}},
          {sequences, sequences_help, {{"state", "prefill"}}},
          {sequences, sequences_help, {{"state", "gpu_decode"}}},
          {sequences, sequences_help, {{"state", "cpu_decode"}}},
          {sequences, sequences_help, {{"state", "moving"}}},
          {blocks, blocks_help, {{"pool", "gpu"}, {"state", "free"}}},
          {blocks, blocks_help, {{"pool", "gpu"}, {"state", "used"}}},
          {blocks, blocks_help, {{"pool", "gpu"}, {"state", "cached"}}},
          {blocks, blocks_help, {{"pool", "cpu"}, {"state", "free"}}},
          {blocks, blocks_help, {{"pool", "cpu"}, {"state", "used"}}},
          {blocks, blocks_help, {{"pool", "cpu"}, {"state", "cached"}}},
          {"tandem_worker_cpu_attention_up", "1 while a CPU attention worker is attached.", {}},
          {"tandem_worker_offload_enabled", "1 while decode attention may run on the CPU.", {}}};
}

}  // namespace

void WorkerMetrics::Total::Raise(uint64_t total) {
  if (total > seen) {
    counter->Add(static_cast<double>(total - seen));
    seen = total;
  }
}

WorkerMetrics::WorkerMetrics(telemetry::Registry* registry) : registry_(registry) {
  for (const Series& series : TotalSeries()) {
    totals_.push_back({.counter = &registry_->counter(series.name, series.help, series.labels)});
  }
  for (const Series& series : LevelSeries()) {
    gauges_.push_back(&registry_->gauge(series.name, series.help, series.labels));
  }
  loaded_ = &registry_->gauge("tandem_worker_weights_loaded_ratio",
                              "Share of the model's layers whose weights are read.", {});
  for (const StepMode mode : {StepMode::kGpuOnly, StepMode::kUnified, StepMode::kAsymmetric}) {
    step_seconds_.push_back(&registry_->histogram(
        "tandem_worker_step_duration_seconds", "Time of a step from plan to commit.",
        telemetry::LatencyBounds(), {{"mode", StepModeName(mode)}}));
  }
  for (const char* term : kTerms) {
    ratios_[term] = &registry_->histogram("tandem_worker_prediction_ratio",
                                          "Measured over predicted time of a step's terms.",
                                          RatioBounds(), {{"term", term}});
  }
  Update(EngineSnapshot{});
}

void WorkerMetrics::Update(const EngineSnapshot& snapshot) {
  const std::lock_guard lock(mutex_);
  const std::vector<uint64_t> totals = TotalsOf(snapshot);
  for (size_t i = 0; i < totals_.size(); ++i) {
    totals_[i].Raise(totals[i]);
  }
  const std::vector<double> levels = LevelsOf(snapshot);
  for (size_t i = 0; i < gauges_.size(); ++i) {
    gauges_[i]->Set(levels[i]);
  }
}

void WorkerMetrics::Observe(const StepObservation& observation) {
  step_seconds_[static_cast<size_t>(observation.mode)]->Observe(observation.duration_us * 1e-6);
  for (const auto& [term, ratio] : observation.measured_over_predicted) {
    if (const auto found = ratios_.find(term); found != ratios_.end()) {
      found->second->Observe(ratio);
    }
  }
}

bool LivenessWatch::Check(const EngineSnapshot& s) {
  const int32_t pending = s.waiting + s.prefill + s.gpu_decode + s.cpu_decode + s.moving;
  const int64_t now = clock_->NowUs();
  const std::lock_guard lock(mutex_);
  if (!started_ || s.progress != progress_ || pending == 0) {
    started_ = true;
    progress_ = s.progress;
    moved_us_ = now;
  }
  return now - moved_us_ <= limit_us_;
}

}  // namespace tandem::gpu_worker
