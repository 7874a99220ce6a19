#pragma once

#include <cstdint>
#include <map>
#include <memory>

#include "common/kv_layout/kv_layout.h"
#include "common/model_shape/model_shape.h"
#include "gpu_worker/device/device.h"

// Operators of a decoder. Each is a contract (name.h), checks and dispatch (name.cc) and a file per
// kind of device: name_host.cc, name_paced.cc, name_cuda.cc (kernels in cuda/). An operator queues
// its work on the context's stream and returns; what its arguments point to must stay until the
// stream is past it. Matrices are row-major. Arguments that contradict each other are broken
// invariants (CHECK): callers validate input.
namespace tandem::gpu_worker::ops {

namespace host {
class Workspace;
}
namespace cuda {
class OpState;
}
namespace paced {
class PseudoKv;
class PseudoRows;
}  // namespace paced

// A device's compute stream with what the operators keep for it (primitives, scratch memory). One
// thread queues operators.
class OpContext {
 public:
  // `compute_dtype` is float32 or bfloat16, on a GPU also float16 (bfloat16 from compute capability
  // 8.0 on), on a paced device what its profile has. Both pointers outlive the context.
  static absl::StatusOr<std::unique_ptr<OpContext>> Create(device::Device* device,
                                                           device::Stream* stream,
                                                           DType compute_dtype);
  ~OpContext();

  device::Device& device() const { return *device_; }
  device::Stream& stream() const { return *stream_; }
  DType compute_dtype() const { return compute_dtype_; }
  host::Workspace& workspace() const { return *workspace_; }
  // Of a CUDA device only.
  cuda::OpState& cuda() const { return *cuda_; }
  // Of a paced device only.
  const paced::PseudoRows& pseudo_rows() const { return *pseudo_rows_; }
  // Of a CPU pool, made at the first call for its number of heads; stays. Called by the thread that
  // queues operators.
  const paced::PseudoKv& pseudo_kv(const kv::PoolGeometry& cpu_pool);

 private:
  OpContext(device::Device* device, device::Stream* stream, DType compute_dtype);

  device::Device* device_;
  device::Stream* stream_;
  DType compute_dtype_;
  std::unique_ptr<host::Workspace> workspace_;
  std::unique_ptr<cuda::OpState> cuda_;
  std::unique_ptr<paced::PseudoRows> pseudo_rows_;
  std::map<int32_t, std::unique_ptr<paced::PseudoKv>> pseudo_kv_;  // by number of heads
};

// Whether matmuls in bfloat16 run on this machine at all, and as instructions of its own.
bool HostRunsBFloat16();
bool HostHasFastBFloat16();

}  // namespace tandem::gpu_worker::ops
