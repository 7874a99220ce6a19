#pragma once

#include <cstdint>
#include <memory>

#include "common/model_shape/model_shape.h"
#include "gpu_worker/device/device.h"

// Operators of a decoder. Each is four files: name.h (contract), name.cc (checks and dispatch),
// name_host.cc, later name_cuda.cu. An operator queues its work on the context's stream and
// returns; what its arguments point to must stay until the stream is past it. Matrices are
// row-major. Arguments that contradict each other are broken invariants (CHECK): callers validate
// input.
namespace tandem::gpu_worker::ops {

namespace host {
class Workspace;
}

// A device's compute stream with what the operators keep for it (primitives, scratch memory). One
// thread queues operators.
class OpContext {
 public:
  // `compute_dtype` is float32 or bfloat16. Both pointers outlive the context.
  static absl::StatusOr<std::unique_ptr<OpContext>> Create(device::Device* device,
                                                           device::Stream* stream,
                                                           DType compute_dtype);
  ~OpContext();

  device::Device& device() const { return *device_; }
  device::Stream& stream() const { return *stream_; }
  DType compute_dtype() const { return compute_dtype_; }
  host::Workspace& workspace() const { return *workspace_; }

 private:
  OpContext(device::Device* device, device::Stream* stream, DType compute_dtype);

  device::Device* device_;
  device::Stream* stream_;
  DType compute_dtype_;
  std::unique_ptr<host::Workspace> workspace_;
};

// Whether matmuls in bfloat16 run on this machine at all, and as instructions of its own.
bool HostRunsBFloat16();
bool HostHasFastBFloat16();

}  // namespace tandem::gpu_worker::ops
