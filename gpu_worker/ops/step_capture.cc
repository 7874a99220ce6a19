#include "gpu_worker/ops/step_capture.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/status_macros.h"
#include "gpu_worker/ops/cuda.h"

namespace tandem::gpu_worker::ops {
namespace {

constexpr size_t kAlignment = 64;
constexpr size_t kTables = 4;  // of a sub-batch, block tables apart

size_t Aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Room for the tables of rows, before the block tables.
size_t HeaderBytes(const StepCaptureLimits& limits) {
  const auto rows = static_cast<size_t>(limits.max_rows);
  return Aligned(rows * (3 * sizeof(int32_t) + sizeof(cuda::RunParams)) + 2 * kTables * kAlignment);
}

class Work : public CapturedWork {
 public:
  explicit Work(std::unique_ptr<device::CudaGraph> graph) : graph_(std::move(graph)) {}
  device::CudaGraph& graph() { return *graph_; }

 private:
  std::unique_ptr<device::CudaGraph> graph_;
};

// The tables of rows stand before one place of the area, towards its front, and the block tables
// behind it: so one copy brings all of them, and sizes of rows alone decide what stands where.
class CudaStepCapture : public StepCapture {
 public:
  CudaStepCapture(OpContext* context, const std::vector<device::Stream*>& others,
                  const StepCaptureLimits& limits)
      : context_(context), limits_(limits) {
    for (device::Stream* stream : others) {
      others_.push_back(&cuda::AsCuda(*stream));
    }
  }

  absl::Status Allocate() {
    const uint64_t bytes = StepCaptureBytes(limits_);
    TANDEM_ASSIGN_OR_RETURN(area_, context_->device().Allocate(bytes, "the graphs' tables"));
    TANDEM_ASSIGN_OR_RETURN(mirror_, context_->device().AllocateHost(bytes, "the graphs' tables"));
    return absl::OkStatus();
  }

  bool Fill(std::span<const DecodeTables> tables) override {
    parts_.clear();
    std::vector<int32_t> block_tables;
    std::vector<std::vector<cuda::RunParams>> entries;
    size_t bytes = 0;
    size_t rows = 0;
    for (const DecodeTables& each : tables) {
      entries.push_back(cuda::RunEntries(each.decode, block_tables));
      rows += each.tokens.size();
      bytes += Aligned(each.tokens.size_bytes()) + Aligned(each.positions.size_bytes()) +
               Aligned(each.cpu_rows.size_bytes()) +
               Aligned(entries.back().size() * sizeof(cuda::RunParams));
    }
    const size_t header = HeaderBytes(limits_);
    const auto max_entries = static_cast<size_t>(limits_.max_table_entries);
    if (rows > static_cast<size_t>(limits_.max_rows) || block_tables.size() > max_entries ||
        bytes > header) {
      return false;
    }
    const size_t begin = header - bytes;
    size_t at = begin;
    for (size_t i = 0; i < tables.size(); ++i) {
      Part part{tables[i]};
      part.tokens = Put(tables[i].tokens, at);
      part.positions = Put(tables[i].positions, at);
      part.cpu_rows = Put(tables[i].cpu_rows, at);
      part.runs = Put(std::span<const cuda::RunParams>(entries[i]), at);
      parts_.push_back(part);
    }
    std::copy(block_tables.begin(), block_tables.end(),
              reinterpret_cast<int32_t*>(mirror_->data() + header));
    cuda::AsCuda(context_->stream())
        .CopyFromHost(area_->data() + begin, mirror_->data() + begin,
                      bytes + block_tables.size() * sizeof(int32_t));
    return true;
  }

  absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(
      int32_t max_context, const std::function<absl::Status()>& queue) override {
    cuda::StepTables pinned = Pinned(max_context);
    context_->cuda().UseTables(&pinned);
    absl::StatusOr<std::unique_ptr<device::CudaGraph>> graph =
        cuda::AsCuda(context_->stream()).Capture(others_, queue);
    context_->cuda().UseTables(nullptr);
    if (!graph.ok()) {
      return graph.status();
    }
    return std::make_unique<Work>(*std::move(graph));
  }

  void Launch(CapturedWork& work) override {
    cuda::AsCuda(context_->stream()).LaunchGraph(static_cast<Work&>(work).graph());
  }

 private:
  // Where a sub-batch's tables stand in the area.
  struct Part {
    DecodeTables tables;
    size_t tokens = 0;
    size_t positions = 0;
    size_t cpu_rows = 0;
    size_t runs = 0;
  };

  template <typename T>
  size_t Put(std::span<const T> values, size_t& at) {
    const size_t offset = at;
    if (!values.empty()) {
      std::memcpy(mirror_->data() + offset, values.data(), values.size_bytes());
    }
    at += Aligned(values.size_bytes());
    return offset;
  }

  const int32_t* Ids(size_t offset) const {
    return reinterpret_cast<const int32_t*>(area_->data() + offset);
  }

  cuda::StepTables Pinned(int32_t max_context) const {
    cuda::StepTables pinned;
    for (const Part& part : parts_) {
      pinned.Pin(part.tables.tokens, Ids(part.tokens));
      pinned.Pin(part.tables.positions, Ids(part.positions));
      pinned.Pin(part.tables.cpu_rows, Ids(part.cpu_rows));
      cuda::RunsParams runs;
      runs.runs = reinterpret_cast<const cuda::RunParams*>(area_->data() + part.runs);
      runs.tables = Ids(HeaderBytes(limits_));
      runs.num_runs = static_cast<int32_t>(part.tables.decode.size());
      runs.total_rows = runs.num_runs;
      runs.max_rows = 1;
      runs.max_context = max_context;
      pinned.Pin(part.tables.store, runs);
      pinned.Pin(part.tables.decode, runs);
    }
    return pinned;
  }

  OpContext* context_;
  const StepCaptureLimits limits_;
  std::vector<device::CudaStream*> others_;
  std::unique_ptr<device::Buffer> area_;
  std::unique_ptr<device::Buffer> mirror_;  // pinned; written between steps
  std::vector<Part> parts_;                 // of the newest Fill
};

}  // namespace

uint64_t StepCaptureBytes(const StepCaptureLimits& limits) {
  return HeaderBytes(limits) + static_cast<uint64_t>(limits.max_table_entries) * sizeof(int32_t);
}

absl::StatusOr<std::unique_ptr<StepCapture>> CreateStepCapture(
    OpContext* context, const std::vector<device::Stream*>& others,
    const StepCaptureLimits& limits) {
  if (!cuda::IsCuda(*context)) {
    return nullptr;
  }
  auto capture = std::make_unique<CudaStepCapture>(context, others, limits);
  TANDEM_RETURN_IF_ERROR(capture->Allocate());
  return capture;
}

}  // namespace tandem::gpu_worker::ops
