#include "tests/fakes/fake_cpu_attention_worker.h"

#include <unistd.h>

#include <cmath>
#include <vector>

#include "common/attention_kernels/paged_decode.h"
#include "common/base/bfloat16.h"
#include "common/base/check.h"

namespace tandem::fakes {
namespace {

using Kind = exchange::WorkerSide::LayerWork::Kind;
constexpr int64_t kSliceUs = 20'000;

}  // namespace

FakeCpuAttentionWorker::FakeCpuAttentionWorker(exchange::DeviceSide* device) {
  absl::StatusOr<shm::Region> region =
      shm::Region::Map(dup(device->region().fd()), device->region().size());
  TANDEM_CHECK(region.ok());
  absl::StatusOr<std::unique_ptr<exchange::WorkerSide>> side =
      exchange::WorkerSide::Attach(*std::move(region));
  TANDEM_CHECK(side.ok());
  side_ = *std::move(side);
  thread_ = std::thread([this] { Run(); });
}

FakeCpuAttentionWorker::~FakeCpuAttentionWorker() {
  stop_.store(true);
  side_->Interrupt();
  thread_.join();
}

void FakeCpuAttentionWorker::Run() {
  while (!stop_.load() && !dead_.load()) {
    switch (side_->WaitForStep(kSliceUs)) {
      case exchange::WorkerSide::StepEvent::kNone:
        break;
      case exchange::WorkerSide::StepEvent::kRefused:
        ++refusals_;
        break;
      case exchange::WorkerSide::StepEvent::kArmed:
        ServeStep();
        break;
    }
  }
}

void FakeCpuAttentionWorker::ServeStep() {
  ++steps_;
  while (!stop_.load()) {
    const exchange::WorkerSide::LayerWork work = side_->NextLayer(kSliceUs);
    if (work.kind == Kind::kFinished || work.kind == Kind::kAborted) {
      return;
    }
    if (work.kind == Kind::kNone) {
      continue;
    }
    if (work.layer == die_at_layer_.load()) {
      dead_.store(true);
      return;
    }
    AttendLayer(work.slot, work.layer);
    side_->SignalDone(work.slot, work.layer);
    ++layers_;
  }
}

void FakeCpuAttentionWorker::AttendLayer(int slot, int32_t layer) {
  const exchange::Geometry& sizes = side_->header().geometry;
  const kv::PoolGeometry pool = exchange::PoolGeometryOf(sizes);
  const auto dtype = static_cast<DType>(sizes.compute_dtype);
  const auto element = static_cast<size_t>(DTypeBytes(dtype));
  const size_t q_row = size_t{sizes.num_q_heads} * sizes.head_dim;
  const size_t kv_row = size_t{sizes.num_kv_heads} * sizes.head_dim;
  const exchange::StepSlot& step = side_->slot(slot);
  std::vector<float> out(q_row);
  std::vector<float> log_sum_exp(sizes.num_q_heads);
  const attention::AttendSegmentFn attend =
      attention::GetAttendSegment(attention::Isa::kScalar, pool).value();
  for (size_t i = 0; i < step.rows.size(); ++i) {
    const exchange::RowDescriptor& row = step.rows[i];
    const int32_t* table = step.Table(row);
    const uint32_t last = row.context_tokens - 1;
    kv::StoreToken(
        pool, side_->pool() + pool.LayerOffset(table[last / sizes.block_tokens], layer),
        static_cast<int32_t>(last % sizes.block_tokens),
        {side_->k(slot) + i * kv_row * element, side_->v(slot) + i * kv_row * element, dtype});
    attention::SegmentArgs args;
    args.pool = side_->pool();
    args.block_table = table;
    args.layer = layer;
    args.num_tokens = row.context_tokens;
    args.kv_head_end = pool.num_kv_heads;
    args.group_size = static_cast<int32_t>(sizes.num_q_heads / sizes.num_kv_heads);
    args.q = side_->q(slot) + i * q_row * element;
    args.q_dtype = dtype;
    args.scale = step.scale;
    args.out = out.data();
    args.log_sum_exp = log_sum_exp.data();
    attend(pool, args);
    std::byte* o = side_->o(slot) + i * q_row * element;
    for (size_t d = 0; d < q_row; ++d) {
      if (dtype == DType::kFloat32) {
        reinterpret_cast<float*>(o)[d] = out[d];
      } else if (dtype == DType::kBFloat16) {
        reinterpret_cast<uint16_t*>(o)[d] = base::FloatToBFloat16(out[d]);
      } else {
        reinterpret_cast<_Float16*>(o)[d] = static_cast<_Float16>(out[d]);
      }
    }
    ++rows_;
  }
}

}  // namespace tandem::fakes
