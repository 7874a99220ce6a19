#pragma once

#include <cuda.h>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// The CUDA driver through one table of function pointers, found when the first device is opened: a
// program that never opens one needs no driver.
namespace tandem::gpu_worker::device {

// cuda.h renames some functions to their newest version, in this list as in calls through the
// table.
#define TANDEM_CUDA_DRIVER_FUNCTIONS(X) \
  X(cuInit)                             \
  X(cuDriverGetVersion)                 \
  X(cuGetErrorString)                   \
  X(cuDeviceGetCount)                   \
  X(cuDeviceGet)                        \
  X(cuDeviceGetName)                    \
  X(cuDeviceGetAttribute)               \
  X(cuDevicePrimaryCtxRetain)           \
  X(cuDevicePrimaryCtxRelease)          \
  X(cuCtxSetCurrent)                    \
  X(cuCtxGetStreamPriorityRange)        \
  X(cuMemGetInfo)                       \
  X(cuMemAlloc)                         \
  X(cuMemFree)                          \
  X(cuMemHostAlloc)                     \
  X(cuMemFreeHost)                      \
  X(cuMemHostRegister)                  \
  X(cuMemHostUnregister)                \
  X(cuMemcpyHtoDAsync)                  \
  X(cuMemcpyDtoHAsync)                  \
  X(cuMemsetD8Async)                    \
  X(cuStreamCreateWithPriority)         \
  X(cuStreamDestroy)                    \
  X(cuStreamSynchronize)                \
  X(cuStreamWaitEvent)                  \
  X(cuStreamWriteValue32)               \
  X(cuStreamWaitValue32)                \
  X(cuStreamBeginCapture)               \
  X(cuStreamEndCapture)                 \
  X(cuStreamIsCapturing)                \
  X(cuLaunchHostFunc)                   \
  X(cuEventCreate)                      \
  X(cuEventDestroy)                     \
  X(cuEventRecord)                      \
  X(cuEventRecordWithFlags)             \
  X(cuEventQuery)                       \
  X(cuEventElapsedTime)                 \
  X(cuModuleLoadData)                   \
  X(cuModuleUnload)                     \
  X(cuModuleGetFunction)                \
  X(cuFuncSetAttribute)                 \
  X(cuGraphInstantiate)                 \
  X(cuGraphLaunch)                      \
  X(cuGraphDestroy)                     \
  X(cuGraphExecDestroy)                 \
  X(cuLaunchKernel)

struct DriverApi {
#define TANDEM_CUDA_MEMBER(name) decltype(&::name) name = nullptr;
  TANDEM_CUDA_DRIVER_FUNCTIONS(TANDEM_CUDA_MEMBER)
#undef TANDEM_CUDA_MEMBER
};

// Unavailable, with the reason: no driver, too old a driver, no device. Loaded once and kept; any
// thread.
absl::StatusOr<const DriverApi*> LoadDriver();

// Internal (ResourceExhausted for out of memory) with the driver's own words.
absl::Status DriverError(const DriverApi& api, CUresult result, const char* what);

inline absl::Status CheckDriver(const DriverApi& api, CUresult result, const char* what) {
  return result == CUDA_SUCCESS ? absl::OkStatus() : DriverError(api, result, what);
}

}  // namespace tandem::gpu_worker::device
