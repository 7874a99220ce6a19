#pragma once

#include <cstdint>

#include "absl/status/status.h"
#include "gpu_worker/device/device.h"

namespace tandem::gpu_worker::device {

// One device's end of a group of devices that compute together. Each call is queued on a stream of
// that device; all devices make the same calls in the same order, each on a thread of its own. A
// call that some device does not make leaves the others' streams waiting: whoever cannot go on
// aborts the group. Errors stay with the stream.
class Communicator {
 public:
  virtual ~Communicator() = default;
  virtual int32_t rank() const = 0;
  virtual int32_t size() const = 0;
  // data [count] float32 becomes the sum of all devices' data.
  virtual void AllReduceSum(Stream& stream, float* data, int64_t count) = 0;
  // out [rows, size * width] = each row of all devices' in [rows, width], by rank; float32.
  virtual void AllGatherRows(Stream& stream, const float* in, int64_t rows, int64_t width,
                             float* out) = 0;
};

}  // namespace tandem::gpu_worker::device
