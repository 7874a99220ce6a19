#pragma once

#include <cstdint>
#include <memory>

#include "gpu_worker/pipeline/step_io.h"

namespace tandem::gpu_worker {

// Predicted microseconds of the terms of one layer, before correction. Immutable; any thread.
class CostModel {
 public:
  virtual ~CostModel() = default;
  virtual int32_t num_layers() const = 0;
  // Everything dense of one layer for `rows` token rows (the step's head is spread over layers).
  virtual double LinearUs(int64_t rows) const = 0;
  // Device attention of a chunk after `context` cached tokens.
  virtual double PrefillUs(int64_t chunk, int64_t context) const = 0;
  virtual double GpuDecodeUs(int64_t sequences, int64_t context_tokens) const = 0;
  virtual double CpuDecodeUs(int64_t sequences, int64_t context_tokens) const = 0;
  // Q, K, V and O rows of CPU decodes to and from the exchange.
  virtual double TransferUs(int64_t rows) const = 0;
  // Copying the KV of `tokens` of one layer between the pools.
  virtual double CopyUs(int64_t tokens) const = 0;
  virtual double LaunchUs() const = 0;  // per stage
  // 1: device and CPU attention run side by side; 0: they share cores.
  virtual double overlap() const = 0;
};

// From bandwidths and FLOP/s: first guess at start, in tests and in the simulator. A rate that is
// not positive costs nothing.
std::unique_ptr<CostModel> MakeRooflineCostModel(const MeasuredRates& rates);

}  // namespace tandem::gpu_worker
