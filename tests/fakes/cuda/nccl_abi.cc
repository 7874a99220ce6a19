// Where NCCL's header is there: whether device/cuda/nccl_api.h has its numbers.
#include "gpu_worker/device/cuda/nccl_api.h"

#if __has_include(<nccl.h>)
#include <nccl.h>

namespace tandem::gpu_worker::device {

static_assert(NCCL_MAJOR == 2);
static_assert(sizeof(NcclResult) == sizeof(ncclResult_t));
static_assert(kNcclSuccess == ncclSuccess && kNcclInProgress == ncclInProgress);
static_assert(sizeof(kNcclFloat32) == sizeof(ncclDataType_t) && kNcclFloat32 == ncclFloat32);
static_assert(sizeof(kNcclSum) == sizeof(ncclRedOp_t) && kNcclSum == ncclSum);

}  // namespace tandem::gpu_worker::device
#endif
