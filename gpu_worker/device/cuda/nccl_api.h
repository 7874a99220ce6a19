#pragma once

#include <cstddef>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

// NCCL through a table of function pointers, found when the first group of GPUs is made. Its header
// is no part of the CUDA toolkit: what is needed of NCCL 2's binary interface stands here
// (tests/fakes/cuda/nccl_abi.cc compares it with the header where there is one).
namespace tandem::gpu_worker::device {

using NcclResult = int;  // ncclResult_t
inline constexpr NcclResult kNcclSuccess = 0;
inline constexpr NcclResult kNcclInProgress = 7;
inline constexpr int kNcclFloat32 = 7;  // ncclDataType_t
inline constexpr int kNcclSum = 0;      // ncclRedOp_t

using NcclComm = struct NcclCommObject*;  // ncclComm_t
using NcclStream = void*;                 // cudaStream_t

struct NcclApi {
  NcclResult (*ncclGetVersion)(int* version) = nullptr;
  const char* (*ncclGetErrorString)(NcclResult result) = nullptr;
  // All communicators of the process at once, on devices devices[0], devices[1], ...
  NcclResult (*ncclCommInitAll)(NcclComm* comms, int count, const int* devices) = nullptr;
  NcclResult (*ncclCommDestroy)(NcclComm comm) = nullptr;
  NcclResult (*ncclCommAbort)(NcclComm comm) = nullptr;  // its kernels end, and it is gone
  NcclResult (*ncclCommGetAsyncError)(NcclComm comm, NcclResult* error) = nullptr;
  NcclResult (*ncclAllReduce)(const void* from, void* to, size_t count, int type, int operation,
                              NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*ncclAllGather)(const void* from, void* to, size_t count_of_each, int type,
                              NcclComm comm, NcclStream stream) = nullptr;
  NcclResult (*ncclGroupStart)() = nullptr;
  NcclResult (*ncclGroupEnd)() = nullptr;
};

// Unavailable, with the loader's reason. Loaded once and kept; any thread.
absl::StatusOr<const NcclApi*> LoadNccl();

// Internal with the library's own words.
absl::Status CheckNccl(const NcclApi& api, NcclResult result, const char* what);

}  // namespace tandem::gpu_worker::device
