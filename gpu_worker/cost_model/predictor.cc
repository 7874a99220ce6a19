#include "gpu_worker/cost_model/predictor.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace tandem::gpu_worker {
namespace {

constexpr int32_t kModes = 3;
constexpr int32_t kFlagSets = 16;
// Share of a layer's dense time before attention (norm and QKV) in models of the llama family.
constexpr double kPreShare = 0.25;

// When each resource and each sub-batch's CPU part are free, during one walk.
struct WalkState {
  double resource_free_us[2] = {0, 0};
  double cpu_free_us = 0;
  double cpu_done_us[2] = {0, 0};
};

double DurationUs(const Stage& stage, const LayerTerms& terms, double launch_us) {
  switch (stage.kind) {
    case StageKind::kPre:
      return launch_us + kPreShare * terms.linear_us;
    case StageKind::kSend:
      return launch_us + terms.transfer_us;
    case StageKind::kAttend:
      return terms.prefill_us + terms.gpu_decode_us > 0
                 ? launch_us + terms.prefill_us + terms.gpu_decode_us
                 : 0.0;
    case StageKind::kPost:
      return launch_us + (1.0 - kPreShare) * terms.linear_us;
    case StageKind::kCopies:
    case StageKind::kEmbed:
    case StageKind::kJoin:
    case StageKind::kSample:
      return launch_us;
  }
  return 0;
}

// When the last stage ends.
double WalkUs(const std::vector<Stage>& program, const std::array<LayerTerms, 2>& terms,
              double launch_us) {
  static thread_local std::vector<double> end_us;  // reused to spare an allocation per walk
  end_us.assign(program.size(), 0);
  WalkState state;
  double last_us = 0;
  for (size_t i = 0; i < program.size(); ++i) {
    const Stage& stage = program[i];
    const auto sub_batch = static_cast<size_t>(stage.sub_batch);
    double& free_us = state.resource_free_us[static_cast<int>(stage.resource)];
    double start_us = free_us;
    for (const int32_t dependency : stage.depends_on) {
      start_us = std::max(start_us, end_us[static_cast<size_t>(dependency)]);
    }
    if (stage.kind == StageKind::kJoin) {
      start_us = std::max(start_us, state.cpu_done_us[sub_batch]);
    }
    end_us[i] = start_us + DurationUs(stage, terms[sub_batch], launch_us);
    free_us = end_us[i];
    if (stage.kind == StageKind::kSend) {
      state.cpu_free_us = std::max(state.cpu_free_us, end_us[i]) + terms[sub_batch].cpu_decode_us;
      state.cpu_done_us[sub_batch] = state.cpu_free_us;
    }
    last_us = std::max(last_us, end_us[i]);
  }
  return last_us;
}

// Device time of the program without any waiting.
double DeviceBusyUs(const std::vector<Stage>& program, const std::array<LayerTerms, 2>& terms,
                    double launch_us) {
  double sum_us = 0;
  for (const Stage& stage : program) {
    sum_us += DurationUs(stage, terms[static_cast<size_t>(stage.sub_batch)], launch_us);
  }
  return sum_us;
}

// From `layers` and one less to all of them.
double Extrapolate(double all_walked, double one_less, int32_t layers, int32_t walked) {
  return all_walked + (layers - walked) * (all_walked - one_less);
}

}  // namespace

Predictor::Predictor(std::shared_ptr<const CostModel> model)
    : model_(std::move(model)),
      walked_layers_(std::min(model_->num_layers(), kWalkedLayers)),
      programs_(static_cast<size_t>(kModes * kFlagSets * 2)) {
  for (int32_t mode = 0; mode < kModes; ++mode) {
    for (int32_t flags = 0; flags < kFlagSets; ++flags) {
      for (const int32_t layers : {walked_layers_, walked_layers_ - 1}) {
        ProgramShape shape;
        shape.mode = static_cast<StepMode>(mode);
        shape.num_layers = layers;
        for (int x = 0; x < 2; ++x) {
          shape.has_rows[x] = (flags >> x & 1) != 0;
          shape.has_cpu_rows[x] = (flags >> (2 + x) & 1) != 0;
        }
        programs_[ProgramIndex(shape.mode, flags, layers)] = BuildStageProgram(shape);
      }
    }
  }
}

size_t Predictor::ProgramIndex(StepMode mode, int32_t flags, int32_t layers) const {
  return static_cast<size_t>((static_cast<int32_t>(mode) * kFlagSets + flags) * 2 +
                             (walked_layers_ - layers));
}

LayerTerms Predictor::TermsOf(const SubBatchLoad& load, const Corrections& corrections) const {
  LayerTerms terms;
  terms.linear_us = corrections.linear * model_->LinearUs(load.rows);
  for (const PrefillLoad& prefill : load.prefills) {
    terms.prefill_us += corrections.prefill * model_->PrefillUs(prefill.chunk, prefill.context);
  }
  if (load.staged_tokens > 0) {
    terms.prefill_us += corrections.copies * model_->CopyUs(load.staged_tokens);
  }
  terms.gpu_decode_us =
      corrections.gpu_decode * model_->GpuDecodeUs(load.gpu_decodes, load.gpu_context_tokens);
  terms.cpu_decode_us =
      corrections.cpu_decode * model_->CpuDecodeUs(load.cpu_decodes, load.cpu_context_tokens);
  terms.transfer_us = corrections.copies * model_->TransferUs(load.cpu_decodes);
  return terms;
}

StepPrediction Predictor::Predict(const StepLoad& load, const Corrections& corrections) const {
  return PredictTerms(
      load.mode, {TermsOf(load.sub_batch[0], corrections), TermsOf(load.sub_batch[1], corrections)},
      load.copied_gpu_tokens, corrections);
}

StepPrediction Predictor::PredictTerms(StepMode mode, const std::array<LayerTerms, 2>& terms,
                                       int64_t copied_gpu_tokens,
                                       const Corrections& corrections) const {
  int32_t flags = 0;
  for (int x = 0; x < 2; ++x) {
    const LayerTerms& t = terms[static_cast<size_t>(x)];
    const bool has_cpu_rows = t.cpu_decode_us + t.transfer_us > 0;
    flags |= t.linear_us + t.prefill_us + t.gpu_decode_us > 0 || has_cpu_rows ? 1 << x : 0;
    flags |= has_cpu_rows ? 4 << x : 0;
  }
  const int32_t layers = model_->num_layers();
  const double launch_us = model_->LaunchUs();
  const auto& full = programs_[ProgramIndex(mode, flags, walked_layers_)];
  const auto& less = programs_[ProgramIndex(mode, flags, walked_layers_ - 1)];
  const double walk_us = Extrapolate(WalkUs(full, terms, launch_us), WalkUs(less, terms, launch_us),
                                     layers, walked_layers_);
  const double device_us =
      Extrapolate(DeviceBusyUs(full, terms, launch_us), DeviceBusyUs(less, terms, launch_us),
                  layers, walked_layers_);
  StepPrediction out;
  const bool with_b = mode == StepMode::kAsymmetric;
  for (int x = 0; x < (with_b ? 2 : 1); ++x) {
    const LayerTerms& t = terms[static_cast<size_t>(x)];
    out.linear_us += layers * t.linear_us;
    out.prefill_us += layers * t.prefill_us;
    out.gpu_decode_us += layers * t.gpu_decode_us;
    out.cpu_decode_us += mode == StepMode::kGpuOnly ? 0 : layers * t.cpu_decode_us;
  }
  out.copies_us = corrections.copies * layers * model_->CopyUs(copied_gpu_tokens);
  // Where both sides share cores nothing is hidden: the times add up.
  const double overlap = model_->overlap();
  const double serial_us = device_us + out.cpu_decode_us;
  const double run_us = overlap * walk_us + (1 - overlap) * std::max(serial_us, walk_us);
  out.cpu_wait_us = std::min(std::max(run_us - device_us, 0.0), out.cpu_decode_us);
  out.total_us = run_us + out.copies_us;
  return out;
}

}  // namespace tandem::gpu_worker
