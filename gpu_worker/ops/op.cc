#include "gpu_worker/ops/op.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gpu_worker/ops/host/workspace.h"

namespace tandem::gpu_worker::ops {

OpContext::OpContext(device::Device* device, device::Stream* stream, DType compute_dtype)
    : device_(device),
      stream_(stream),
      compute_dtype_(compute_dtype),
      workspace_(std::make_unique<host::Workspace>()) {}

OpContext::~OpContext() = default;

absl::StatusOr<std::unique_ptr<OpContext>> OpContext::Create(device::Device* device,
                                                             device::Stream* stream,
                                                             DType compute_dtype) {
  if (compute_dtype != DType::kFloat32 && compute_dtype != DType::kBFloat16) {
    return absl::UnimplementedError(absl::StrCat("--dtype ", DTypeName(compute_dtype),
                                                 " on device host; allowed: float32, bfloat16"));
  }
  if (compute_dtype == DType::kBFloat16 && !HostRunsBFloat16()) {
    return absl::FailedPreconditionError(
        "--dtype bfloat16 on device host needs AVX-512; allowed on this machine: float32");
  }
  return std::unique_ptr<OpContext>(new OpContext(device, stream, compute_dtype));
}

bool HostRunsBFloat16() { return host::RunsBFloat16(); }
bool HostHasFastBFloat16() { return host::HasFastBFloat16(); }

}  // namespace tandem::gpu_worker::ops
