#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/ops/attention.h"
#include "gpu_worker/ops/op.h"

// Steps that are captured once and launched again as a whole, with other tables: CUDA graphs.
namespace tandem::gpu_worker::ops {

// What operators read of a sub-batch's decodes. Rows that only fill up: tokens and positions of 0,
// runs without rows behind the others, CPU rows of -1.
struct DecodeTables {
  std::span<const int32_t> tokens;
  std::span<const int32_t> positions;
  std::span<const RowRun> store;   // of one row each; the same runs twice, at two places
  std::span<const RowRun> decode;  // of the host's memory
  std::span<const int32_t> cpu_rows;
};

class CapturedWork {
 public:
  virtual ~CapturedWork() = default;
};

// One thread uses it, the one that queues operators.
class StepCapture {
 public:
  virtual ~StepCapture() = default;
  // Brings the tables of the next launch to where captured work looks for them; their sizes decide
  // where that is. False: there is no room for them. Errors are the stream's.
  virtual bool Fill(std::span<const DecodeTables> tables) = 0;
  // Captures what `queue` queues on the streams: operators that read the tables of the newest Fill,
  // with contexts up to `max_context` in later ones. `queue` may be called twice.
  virtual absl::StatusOr<std::unique_ptr<CapturedWork>> Capture(
      int32_t max_context, const std::function<absl::Status()>& queue) = 0;
  // After a Fill with tables of the sizes that the captured ones had. Stamps go to where they went
  // then.
  virtual void Launch(CapturedWork& work) = 0;
};

struct StepCaptureLimits {
  int32_t max_rows = 0;           // of all sub-batches together
  int64_t max_table_entries = 0;  // likewise
};
uint64_t StepCaptureBytes(const StepCaptureLimits& limits);

// Null where the device has no graphs. `others`: the streams that take part beside the context's.
absl::StatusOr<std::unique_ptr<StepCapture>> CreateStepCapture(
    OpContext* context, const std::vector<device::Stream*>& others,
    const StepCaptureLimits& limits);

}  // namespace tandem::gpu_worker::ops
