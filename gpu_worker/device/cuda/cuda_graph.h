#pragma once

#include <cuda.h>

#include <memory>
#include <span>
#include <vector>

#include "gpu_worker/device/cuda/cuda_stream.h"

namespace tandem::gpu_worker::device {

class DriverGraph : public CudaGraph {
 public:
  // A time that each launch of the graph takes.
  struct TimedEvent {
    std::unique_ptr<DriverEvent> event;
    double* time_us = nullptr;
  };

  explicit DriverGraph(std::shared_ptr<CudaContext> context) : context_(std::move(context)) {}
  ~DriverGraph() override;

  // While it is captured: takes the time at this point of `stream`.
  absl::Status Stamp(CUstream stream, double* time_us);
  // Makes it launchable; `captured` stays the caller's.
  absl::Status Instantiate(CUgraph captured);
  CUgraphExec handle() const { return graph_; }
  std::span<const TimedEvent> stamps() const { return stamps_; }

 private:
  std::shared_ptr<CudaContext> context_;
  CUgraphExec graph_ = nullptr;
  std::vector<TimedEvent> stamps_;
};

}  // namespace tandem::gpu_worker::device
