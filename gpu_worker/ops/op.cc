#include "gpu_worker/ops/op.h"

#include <string>

#include "common/base/status_macros.h"
#include "common/base/strings.h"
#include "gpu_worker/ops/cuda.h"
#include "gpu_worker/ops/host/workspace.h"
#include "gpu_worker/ops/paced.h"
#include "gpu_worker/ops/pseudo_values.h"

namespace tandem::gpu_worker::ops {

OpContext::OpContext(device::Device* device, device::Stream* stream, DType compute_dtype)
    : device_(device),
      stream_(stream),
      compute_dtype_(compute_dtype),
      workspace_(std::make_unique<host::Workspace>()) {}

OpContext::~OpContext() = default;

namespace {

absl::Status CheckHostDType(DType dtype) {
  if (dtype != DType::kFloat32 && dtype != DType::kBFloat16) {
    return absl::UnimplementedError(
        base::StrCat("--dtype ", DTypeName(dtype), " on device host; allowed: float32, bfloat16"));
  }
  if (dtype == DType::kBFloat16 && !HostRunsBFloat16()) {
    return absl::FailedPreconditionError(
        "--dtype bfloat16 on device host needs AVX2 and FMA, or AVX-512; allowed on this machine: "
        "float32");
  }
  return absl::OkStatus();
}

absl::Status CheckPacedDType(const device::Device& device, DType dtype) {
  const DeviceProfile& profile = static_cast<const device::PacedDevice&>(device).profile();
  if (PeakFlopsPerUs(profile, dtype) > 0) {
    return absl::OkStatus();
  }
  std::string allowed;
  for (const DType other : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
    if (PeakFlopsPerUs(profile, other) > 0) {
      allowed += base::StrCat(allowed.empty() ? "" : ", ", DTypeName(other));
    }
  }
  return absl::InvalidArgumentError(base::StrCat("--dtype ", DTypeName(dtype), ": device ",
                                                 device.name(),
                                                 " lacks the type; allowed: ", allowed));
}

absl::Status CheckCudaDType(const device::CudaDevice& device, DType dtype) {
  const bool has_bfloat16 = device.traits().compute_capability >= 80;
  if (dtype == DType::kFloat32 || dtype == DType::kFloat16 ||
      (dtype == DType::kBFloat16 && has_bfloat16)) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(base::StrCat(
      "--dtype ", DTypeName(dtype), " on ", device.name(),
      has_bfloat16 ? "; allowed: float32, bfloat16, float16" : "; allowed: float32, float16"));
}

absl::Status CheckDType(const device::Device& device, DType dtype) {
  switch (device.kind()) {
    case device::DeviceKind::kHost:
      return CheckHostDType(dtype);
    case device::DeviceKind::kPaced:
      return CheckPacedDType(device, dtype);
    case device::DeviceKind::kCuda:
      return CheckCudaDType(static_cast<const device::CudaDevice&>(device), dtype);
  }
  return absl::InternalError("an unknown kind of device");
}

}  // namespace

absl::StatusOr<std::unique_ptr<OpContext>> OpContext::Create(device::Device* device,
                                                             device::Stream* stream,
                                                             DType compute_dtype) {
  TANDEM_RETURN_IF_ERROR(CheckDType(*device, compute_dtype));
  std::unique_ptr<OpContext> context(new OpContext(device, stream, compute_dtype));
  if (device->kind() == device::DeviceKind::kCuda) {
    TANDEM_ASSIGN_OR_RETURN(context->cuda_,
                            cuda::OpState::Create(static_cast<device::CudaDevice*>(device)));
  } else if (device->kind() == device::DeviceKind::kPaced) {
    context->pseudo_rows_ = std::make_unique<paced::PseudoRows>(compute_dtype);
  }
  return context;
}

const paced::PseudoKv& OpContext::pseudo_kv(const kv::PoolGeometry& cpu_pool) {
  std::unique_ptr<paced::PseudoKv>& values = pseudo_kv_[cpu_pool.num_kv_heads];
  if (values == nullptr) {
    values = std::make_unique<paced::PseudoKv>(cpu_pool);
  }
  return *values;
}

bool HostRunsBFloat16() { return host::RunsBFloat16(); }
bool HostHasFastBFloat16() { return host::HasFastBFloat16(); }

}  // namespace tandem::gpu_worker::ops
