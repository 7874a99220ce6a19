#include "gpu_worker/pipeline/stage_times.h"

#include <algorithm>

namespace tandem::gpu_worker {
namespace {

bool WaitsForJoin(const std::vector<Stage>& stages, const Stage& stage) {
  return std::any_of(stage.depends_on.begin(), stage.depends_on.end(), [&](int32_t index) {
    return stages[static_cast<size_t>(index)].kind == StageKind::kJoin;
  });
}

const char* NameOf(StageKind kind) {
  switch (kind) {
    case StageKind::kCopies:
      return "copies";
    case StageKind::kEmbed:
      return "embed";
    case StageKind::kPre:
      return "pre";
    case StageKind::kSend:
      return "send";
    case StageKind::kAttend:
      return "attend";
    case StageKind::kMoveOut:
      return "move_out";
    case StageKind::kJoin:
      return "join";
    case StageKind::kPost:
      return "post";
    case StageKind::kSample:
      return "sample";
  }
  return "stage";
}

TraceTrack TrackOf(StageResource resource) {
  switch (resource) {
    case StageResource::kCompute:
      return TraceTrack::kDevice;
    case StageResource::kTransfer:
      return TraceTrack::kLink;
    case StageResource::kMover:
      return TraceTrack::kMover;
    case StageResource::kSwapper:
      return TraceTrack::kSwapper;
  }
  return TraceTrack::kDevice;
}

}  // namespace

StepTimings SumStageTimes(const std::vector<Stage>& stages, const std::vector<StageTimes>& times,
                          bool on_one_stream) {
  StepTimings sum;
  double compute_end_us = 0;  // of the compute stage before
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageTimes& time = times[i];
    const double took_us = time.end_us - time.begin_us;
    switch (stages[i].kind) {
      case StageKind::kEmbed:
      case StageKind::kPre:
      case StageKind::kPost:
      case StageKind::kSample:
        sum.linear_us += took_us;
        break;
      case StageKind::kAttend:
        sum.prefill_us += time.split_us - time.begin_us;
        sum.gpu_decode_us += time.end_us - time.split_us;
        break;
      case StageKind::kJoin:
        sum.cpu_decode_us += on_one_stream ? took_us : 0.0;
        break;
      case StageKind::kCopies:
      case StageKind::kMoveOut:
        sum.copies_us += took_us;
        break;
      case StageKind::kSend:
        break;
    }
    if (stages[i].resource == StageResource::kCompute) {
      if (!on_one_stream && compute_end_us > 0 && WaitsForJoin(stages, stages[i])) {
        sum.cpu_decode_us += std::max(time.begin_us - compute_end_us, 0.0);
      }
      compute_end_us = time.end_us;
    }
  }
  return sum;
}

std::vector<TraceSpan> SpansOf(const std::vector<Stage>& stages,
                               const std::vector<StageTimes>& times) {
  std::vector<TraceSpan> spans;
  const auto add = [&spans](const char* name, const Stage& stage, double begin_us, double end_us) {
    const bool both = stage.kind == StageKind::kCopies || stage.kind == StageKind::kSample;
    const bool per_layer = !both && stage.kind != StageKind::kEmbed;
    if (end_us > begin_us) {
      spans.push_back({name, TrackOf(stage.resource), both ? -1 : stage.sub_batch,
                       per_layer ? stage.layer : -1, begin_us, end_us});
    }
  };
  for (size_t i = 0; i < stages.size(); ++i) {
    const StageTimes& time = times[i];
    if (stages[i].kind == StageKind::kAttend) {
      add("prefill", stages[i], time.begin_us, time.split_us);
      add("decode", stages[i], time.split_us, time.end_us);
    } else {
      add(NameOf(stages[i].kind), stages[i], time.begin_us, time.end_us);
    }
  }
  return spans;
}

}  // namespace tandem::gpu_worker
