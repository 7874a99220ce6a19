#pragma once

#include "gpu_worker/device/paced/paced_device.h"
#include "gpu_worker/ops/op.h"

// What the paced variants of the operators share. Times come from the device's profile
// (cost_model/device_profile.h); kernels follow each other as in a captured graph. The simulator's
// cost model sums the same kernels.
namespace tandem::gpu_worker::ops::paced {

inline bool IsPaced(const OpContext& context) {
  return context.device().kind() == device::DeviceKind::kPaced;
}

inline const DeviceProfile& ProfileOf(const OpContext& context) {
  return static_cast<const device::PacedDevice&>(context.device()).profile();
}

inline device::PacedStream& AsPaced(device::Stream& stream) {
  return static_cast<device::PacedStream&>(stream);
}

// A kernel on the compute stream, its launch included.
inline void ChargeKernel(OpContext& context, double us) { AsPaced(context.stream()).Charge(us); }

// Norms, rotations and the like: `elements` of the compute dtype read and written.
inline void ChargeElementwise(OpContext& context, double elements) {
  const double bytes = elements * DTypeBytes(context.compute_dtype());
  ChargeKernel(context, ElementwiseUs(ProfileOf(context), bytes));
}

}  // namespace tandem::gpu_worker::ops::paced
