#pragma once

#include <cuda.h>

#include <cstddef>
#include <memory>

#include "tests/fakes/cuda/executor.h"

// What the fake libraries know of one another's objects.
namespace tandem::fake_cuda {

inline constexpr int kMaxDevices = 16;

struct StreamHandle {
  std::shared_ptr<Stream> stream;
  int device;
};

struct EventHandle {
  std::shared_ptr<Event> event;
  int device;
};

inline const std::shared_ptr<Stream>& Of(CUstream stream) {
  return reinterpret_cast<StreamHandle*>(stream)->stream;
}
inline const std::shared_ptr<Event>& Of(CUevent event) {
  return reinterpret_cast<EventHandle*>(event)->event;
}
inline int DeviceOf(CUstream stream) { return reinterpret_cast<StreamHandle*>(stream)->device; }

// Whose context is the thread's; -1: none.
int& CurrentDevice();

// Whether that device allocated all of it.
bool IsDeviceMemory(const void* begin, size_t bytes, int device);

}  // namespace tandem::fake_cuda
