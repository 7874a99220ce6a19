#include "gpu_worker/cost_model/predictor.h"

#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "common/base/check.h"

namespace tandem::gpu_worker {
namespace {

// How many layers are walked: the pipeline of two sub-batches is in its steady state by then.
constexpr int32_t kWalkedLayers = 4;
constexpr int32_t kKinds = 4;      // the modes, and asymmetric in the published order
constexpr int32_t kFlagSets = 64;  // by sub-batch: has rows, has CPU rows, moves out
// Share of a layer's dense time before attention (norm and QKV) in models of the llama family.
constexpr double kPreShare = 0.25;

// A stage as the walk needs it: one dependency at most besides the order of its resource.
struct WalkStage {
  StageKind kind;
  int32_t sub_batch;
  int32_t resource;
  int32_t depends_on;  // -1: none
};
struct WalkProgram {
  std::vector<WalkStage> stages;
  size_t shared = 0;  // of them, the first: also the first of the program with one layer less
};

int32_t KindIndex(StepMode mode, StageOrder order) {
  const bool published = mode == StepMode::kAsymmetric && order == StageOrder::kPublished;
  return published ? kKinds - 1 : static_cast<int32_t>(mode);
}

WalkProgram MakeProgram(int32_t kind, int32_t flags, int32_t layers) {
  ProgramShape shape;
  const bool published = kind == kKinds - 1;
  shape.mode = published ? StepMode::kAsymmetric : static_cast<StepMode>(kind);
  shape.order = published ? StageOrder::kPublished : StageOrder::kOverlapped;
  shape.num_layers = layers;
  for (int x = 0; x < 2; ++x) {
    shape.has_rows[x] = (flags >> x & 1) != 0;
    shape.has_cpu_rows[x] = (flags >> (2 + x) & 1) != 0;
    shape.moves_out[x] = (flags >> (4 + x) & 1) != 0;
  }
  WalkProgram program;
  for (const Stage& stage : BuildStageProgram(shape)) {
    TANDEM_CHECK(stage.depends_on.size() <= 1);
    program.stages.push_back({stage.kind, stage.sub_batch, static_cast<int32_t>(stage.resource),
                              stage.depends_on.empty() ? -1 : stage.depends_on.front()});
  }
  return program;
}

size_t SharedStages(const WalkProgram& a, const WalkProgram& b) {
  const auto same = [](const WalkStage& x, const WalkStage& y) {
    return x.kind == y.kind && x.sub_batch == y.sub_batch && x.resource == y.resource &&
           x.depends_on == y.depends_on;
  };
  const auto ends =
      std::mismatch(a.stages.begin(), a.stages.end(), b.stages.begin(), b.stages.end(), same);
  return static_cast<size_t>(ends.first - a.stages.begin());
}

// The programs of every shape with up to kWalkedLayers layers; constants.
const WalkProgram& ProgramOf(int32_t kind, int32_t flags, int32_t layers) {
  static const auto* const programs = [] {
    auto* all = new std::vector<WalkProgram>();
    for (int32_t i = 0; i < kKinds * kFlagSets * (kWalkedLayers + 1); ++i) {
      const int32_t shape = i / (kWalkedLayers + 1);
      const int32_t layers = i % (kWalkedLayers + 1);
      WalkProgram program = MakeProgram(shape / kFlagSets, shape % kFlagSets, layers);
      program.shared = layers > 0 ? SharedStages(program, all->back()) : 0;
      all->push_back(std::move(program));
    }
    return all;
  }();
  return (
      *programs)[static_cast<size_t>((kind * kFlagSets + flags) * (kWalkedLayers + 1) + layers)];
}

// The time of each kind of stage in each sub-batch.
struct StageTimes {
  static constexpr size_t kKindCount = static_cast<size_t>(StageKind::kSample) + 1;
  double us[2][kKindCount];
  double cpu_us[2];

  StageTimes(const std::array<LayerTerms, 2>& terms, double launch_us) {
    for (size_t x = 0; x < 2; ++x) {
      const LayerTerms& t = terms[x];
      const double attend_us = t.prefill_us + t.gpu_decode_us;
      cpu_us[x] = t.cpu_decode_us;
      std::fill(us[x], us[x] + kKindCount, launch_us);
      of(x, StageKind::kPre) += kPreShare * t.linear_us;
      of(x, StageKind::kSend) += t.transfer_us;
      of(x, StageKind::kAttend) = attend_us > 0 ? launch_us + attend_us : 0.0;
      of(x, StageKind::kMoveOut) += t.move_out_us;
      of(x, StageKind::kPost) += (1.0 - kPreShare) * t.linear_us;
    }
  }
  double& of(size_t x, StageKind kind) { return us[x][static_cast<size_t>(kind)]; }
  double of(const WalkStage& stage) const {
    return us[stage.sub_batch][static_cast<size_t>(stage.kind)];
  }
};

// When the last stage ends, and the sums of what the device itself and its mover do.
struct WalkResult {
  double end_us = 0;
  double device_us = 0;
  double mover_us = 0;
  double stages = 0;
};

constexpr size_t kMostStages = 24 * kWalkedLayers;
using StageEnds = std::array<double, kMostStages>;

// How far a walk has come, besides the ends of the stages behind it.
struct WalkState {
  size_t walked = 0;  // stages
  double resource_free_us[kStageResources] = {0, 0, 0, 0};
  double cpu_free_us = 0;
  double cpu_done_us[2] = {0, 0};
  WalkResult result;
};

// The stages up to `end` that are not walked yet.
void WalkOn(const WalkProgram& program, size_t end, const StageTimes& times, WalkState* state,
            StageEnds& end_us) {
  WalkResult result = state->result;
  double cpu_free_us = state->cpu_free_us;
  for (size_t i = state->walked; i < end; ++i) {
    const WalkStage& stage = program.stages[i];
    double start_us = state->resource_free_us[stage.resource];
    if (stage.depends_on >= 0) {
      start_us = std::max(start_us, end_us[static_cast<size_t>(stage.depends_on)]);
    }
    if (stage.kind == StageKind::kJoin) {
      start_us = std::max(start_us, state->cpu_done_us[stage.sub_batch]);
    }
    const double stage_us = times.of(stage);
    const double stage_end_us = start_us + stage_us;
    end_us[i] = stage_end_us;
    state->resource_free_us[stage.resource] = stage_end_us;
    (stage.kind == StageKind::kMoveOut ? result.mover_us : result.device_us) += stage_us;
    result.end_us = std::max(result.end_us, stage_end_us);
    result.stages += stage_us > 0 ? 1 : 0;
    if (stage.kind == StageKind::kSend) {
      cpu_free_us = std::max(cpu_free_us, stage_end_us) + times.cpu_us[stage.sub_batch];
      state->cpu_done_us[stage.sub_batch] = cpu_free_us;
    }
  }
  state->walked = end;
  state->cpu_free_us = cpu_free_us;
  state->result = result;
}

// Of some layers and of one less, which begins alike.
struct WalkResults {
  WalkResult full;
  WalkResult less;
};

WalkResults Walk(const WalkProgram& full, const WalkProgram& less, const StageTimes& times) {
  TANDEM_CHECK(full.stages.size() <= kMostStages && less.stages.size() <= kMostStages);
  StageEnds end_us;
  WalkState state;
  WalkOn(full, full.shared, times, &state, end_us);
  WalkState less_state = state;
  WalkOn(less, less.stages.size(), times, &less_state, end_us);
  WalkOn(full, full.stages.size(), times, &state, end_us);
  return {state.result, less_state.result};
}

// From `layers` and one less to all of them.
double Extrapolate(double all_walked, double one_less, int32_t layers, int32_t walked) {
  return all_walked + (layers - walked) * (all_walked - one_less);
}

int32_t FlagsOf(const std::array<LayerTerms, 2>& terms) {
  int32_t flags = 0;
  for (int x = 0; x < 2; ++x) {
    const LayerTerms& t = terms[static_cast<size_t>(x)];
    const bool has_cpu_rows = t.cpu_decode_us + t.transfer_us > 0;
    flags |= t.device_us() > 0 || has_cpu_rows ? 1 << x : 0;
    flags |= has_cpu_rows ? 4 << x : 0;
    flags |= t.move_out_us > 0 ? 16 << x : 0;
  }
  return flags;
}

}  // namespace

Predictor::Predictor(std::shared_ptr<const CostModel> model)
    : model_(std::move(model)), walked_layers_(std::min(model_->num_layers(), kWalkedLayers)) {}

double Predictor::CpuDecodeUs(int64_t sequences, int64_t context_tokens,
                              const Corrections& corrections) const {
  return sequences <= 0 ? 0.0
                        : corrections.cpu_decode * model_->CpuDecodeUs(sequences, context_tokens) +
                              corrections.cpu_fixed_us;
}

double Predictor::LaunchUs(const Corrections& corrections) const {
  return std::max(model_->LaunchUs() + corrections.launch_us, 0.0);
}

double Predictor::Overlap(const Corrections& corrections) const {
  return std::clamp(model_->overlap() + corrections.overlap, 0.0, 1.0);
}

LayerTerms Predictor::TermsOf(const SubBatchLoad& load, const Corrections& corrections) const {
  LayerTerms terms;
  terms.linear_us = corrections.linear * model_->LinearUs(load.rows);
  for (const PrefillLoad& prefill : load.prefills) {
    terms.prefill_us += corrections.prefill * model_->PrefillUs(prefill.chunk, prefill.context);
  }
  if (load.staged_in_tokens > 0) {
    terms.prefill_us += corrections.copies * model_->CopyUs(load.staged_in_tokens);
  }
  if (load.staged_out_tokens > 0) {
    terms.move_out_us = corrections.copies * model_->CopyUs(load.staged_out_tokens);
  }
  terms.gpu_decode_us =
      corrections.gpu_decode * model_->GpuDecodeUs(load.gpu_decodes, load.gpu_context_tokens);
  terms.cpu_decode_us = CpuDecodeUs(load.cpu_decodes, load.cpu_context_tokens, corrections);
  terms.transfer_us = corrections.copies * model_->TransferUs(load.cpu_decodes);
  return terms;
}

StepPrediction Predictor::Predict(const StepLoad& load, const Corrections& corrections) const {
  return PredictTerms(
      {load.mode, load.order, load.copied_gpu_tokens},
      {TermsOf(load.sub_batch[0], corrections), TermsOf(load.sub_batch[1], corrections)},
      corrections);
}

StepPrediction Predictor::PredictTerms(const StepShape& shape,
                                       const std::array<LayerTerms, 2>& terms,
                                       const Corrections& corrections) const {
  const int32_t layers = model_->num_layers();
  const int32_t kind = KindIndex(shape.mode, shape.order);
  const int32_t flags = FlagsOf(terms);
  const StageTimes times(terms, LaunchUs(corrections));
  const auto [full, less] = Walk(ProgramOf(kind, flags, walked_layers_),
                                 ProgramOf(kind, flags, walked_layers_ - 1), times);
  const double walk_us = Extrapolate(full.end_us, less.end_us, layers, walked_layers_);
  const double device_us = Extrapolate(full.device_us, less.device_us, layers, walked_layers_);
  const double mover_us = Extrapolate(full.mover_us, less.mover_us, layers, walked_layers_);
  StepPrediction out;
  const bool with_b = shape.mode == StepMode::kAsymmetric;
  for (int x = 0; x < (with_b ? 2 : 1); ++x) {
    const LayerTerms& t = terms[static_cast<size_t>(x)];
    out.linear_us += layers * t.linear_us;
    out.prefill_us += layers * t.prefill_us;
    out.gpu_decode_us += layers * t.gpu_decode_us;
    out.move_out_us += layers * t.move_out_us;
    if (shape.mode != StepMode::kGpuOnly && t.cpu_decode_us > 0) {
      out.cpu_posts += layers;
      out.cpu_decode_us += layers * t.cpu_decode_us;
      out.cpu_fixed_us += layers * std::min(corrections.cpu_fixed_us, t.cpu_decode_us);
      out.cpu_exchange_us += layers * std::min(model_->CpuDecodeUs(1, 1), t.cpu_decode_us);
    }
  }
  out.copies_us = corrections.copies * layers * model_->CopyUs(shape.copied_gpu_tokens);
  // Where both sides share cores nothing is hidden: the times add up.
  out.launched = Extrapolate(full.stages, less.stages, layers, walked_layers_);
  out.overlap = Overlap(corrections);
  out.walk_us = walk_us;
  out.serial_us = std::max(device_us + mover_us + out.cpu_decode_us, walk_us);
  const double run_us = out.overlap * walk_us + (1 - out.overlap) * out.serial_us;
  const double busy_us = device_us + (1 - out.overlap) * mover_us;
  out.cpu_wait_us = std::min(std::max(run_us - busy_us, 0.0), out.cpu_decode_us);
  const double beside_us = std::max(run_us, out.copies_us);
  out.total_us = out.overlap * beside_us + (1 - out.overlap) * (run_us + out.copies_us);
  return out;
}

}  // namespace tandem::gpu_worker
