#include "gpu_worker/pipeline/stage_program.h"

#include <utility>

namespace tandem::gpu_worker {
namespace {

// Appends stages in list order and knows where the ones that others depend on stand.
class ProgramBuilder {
 public:
  explicit ProgramBuilder(const ProgramShape& shape) : shape_(shape) {}

  void Copies() { Add(StageKind::kCopies, 0, 0, StageResource::kSwapper, {}); }

  void Embed(int32_t sub_batch) {
    if (shape_.has_rows[sub_batch]) {
      Add(StageKind::kEmbed, sub_batch, 0, StageResource::kCompute, {});
    }
  }

  void PreAndSend(int32_t sub_batch, int32_t layer) {
    Pre(sub_batch, layer);
    Send(sub_batch, layer);
  }

  void Pre(int32_t sub_batch, int32_t layer) {
    if (!shape_.has_rows[sub_batch]) {
      return;
    }
    pre_[sub_batch] = Add(StageKind::kPre, sub_batch, layer, StageResource::kCompute, {});
  }

  void Send(int32_t sub_batch, int32_t layer) {
    if (shape_.has_cpu_rows[sub_batch]) {
      Add(StageKind::kSend, sub_batch, layer, StageResource::kTransfer, {pre_[sub_batch]});
    }
  }

  // The design's attend(X, i): device rows, then the join with the CPU's outputs.
  void AttendAndJoin(int32_t sub_batch, int32_t layer) {
    if (!shape_.has_rows[sub_batch]) {
      return;
    }
    std::vector<int32_t> after_move;
    if ((shape_.moves_out[sub_batch] || shape_.uses_staging[sub_batch]) && move_out_ >= 0) {
      after_move.push_back(std::exchange(move_out_, -1));
    }
    const int32_t attend =
        Add(StageKind::kAttend, sub_batch, layer, StageResource::kCompute, std::move(after_move));
    if (shape_.moves_out[sub_batch]) {
      move_out_ = Add(StageKind::kMoveOut, sub_batch, layer, StageResource::kMover, {attend});
    }
    if (shape_.has_cpu_rows[sub_batch]) {
      join_[sub_batch] = Add(StageKind::kJoin, sub_batch, layer, StageResource::kTransfer, {});
    }
  }

  void Post(int32_t sub_batch, int32_t layer) {
    if (!shape_.has_rows[sub_batch]) {
      return;
    }
    std::vector<int32_t> after_join;
    if (shape_.has_cpu_rows[sub_batch]) {
      after_join.push_back(join_[sub_batch]);
    }
    Add(StageKind::kPost, sub_batch, layer, StageResource::kCompute, std::move(after_join));
  }

  void Sample() {
    if (shape_.has_rows[0] || shape_.has_rows[1]) {
      Add(StageKind::kSample, 0, shape_.num_layers - 1, StageResource::kCompute, {});
    }
  }

  std::vector<Stage> Take() { return std::move(stages_); }

 private:
  int32_t Add(StageKind kind, int32_t sub_batch, int32_t layer, StageResource resource,
              std::vector<int32_t> depends_on) {
    stages_.push_back({kind, sub_batch, layer, resource, std::move(depends_on)});
    return static_cast<int32_t>(stages_.size()) - 1;
  }

  const ProgramShape& shape_;
  std::vector<Stage> stages_;
  int32_t move_out_ = -1;      // newest, which holds the staging area
  int32_t pre_[2] = {-1, -1};  // newest of each sub-batch
  int32_t join_[2] = {-1, -1};
};

void OneSubBatch(const ProgramShape& shape, ProgramBuilder& builder) {
  builder.Embed(0);
  for (int32_t layer = 0; layer < shape.num_layers; ++layer) {
    builder.PreAndSend(0, layer);
    builder.AttendAndJoin(0, layer);
    builder.Post(0, layer);
  }
}

void TwoSubBatches(const ProgramShape& shape, ProgramBuilder& builder) {
  const int32_t last = shape.num_layers - 1;
  builder.Embed(0);
  builder.PreAndSend(0, 0);
  builder.Embed(1);
  builder.PreAndSend(1, 0);
  builder.AttendAndJoin(0, 0);
  for (int32_t layer = 0; layer < last; ++layer) {
    builder.Post(0, layer);
    builder.PreAndSend(0, layer + 1);
    builder.AttendAndJoin(1, layer);
    builder.Post(1, layer);
    builder.PreAndSend(1, layer + 1);
    builder.AttendAndJoin(0, layer + 1);
  }
  builder.Post(0, last);
  builder.AttendAndJoin(1, last);
  builder.Post(1, last);
}

void TwoSubBatchesPublished(const ProgramShape& shape, ProgramBuilder& builder) {
  const int32_t last = shape.num_layers - 1;
  builder.Embed(0);
  builder.PreAndSend(0, 0);
  builder.Embed(1);
  builder.Pre(1, 0);
  builder.AttendAndJoin(0, 0);
  builder.Send(1, 0);
  for (int32_t layer = 0; layer < last; ++layer) {
    builder.Post(0, layer);
    builder.Pre(0, layer + 1);
    builder.AttendAndJoin(1, layer);
    builder.Send(0, layer + 1);
    builder.Post(1, layer);
    builder.Pre(1, layer + 1);
    builder.AttendAndJoin(0, layer + 1);
    builder.Send(1, layer + 1);
  }
  builder.Post(0, last);
  builder.AttendAndJoin(1, last);
  builder.Post(1, last);
}

}  // namespace

std::vector<Stage> BuildStageProgram(const ProgramShape& shape) {
  ProgramShape used = shape;
  const bool two = shape.mode == StepMode::kAsymmetric;
  used.has_rows[1] = two && shape.has_rows[1];
  for (int x = 0; x < 2; ++x) {
    used.has_cpu_rows[x] =
        shape.mode != StepMode::kGpuOnly && used.has_rows[x] && shape.has_cpu_rows[x];
    used.moves_out[x] = used.has_rows[x] && shape.moves_out[x];
  }
  ProgramBuilder builder(used);
  if (used.has_copies) {
    builder.Copies();
  }
  if (used.num_layers > 0) {
    if (!two) {
      OneSubBatch(used, builder);
    } else if (shape.order == StageOrder::kPublished) {
      TwoSubBatchesPublished(used, builder);
    } else {
      TwoSubBatches(used, builder);
    }
    builder.Sample();
  }
  return builder.Take();
}

}  // namespace tandem::gpu_worker
