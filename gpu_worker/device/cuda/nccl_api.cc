#include "gpu_worker/device/cuda/nccl_api.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/shared_library.h"

namespace tandem::gpu_worker::device {
namespace {

constexpr int kOldestVersion = 20'900;  // 2.9: 10000 * major + 100 * minor + patch since then

template <typename Function>
absl::Status Find(void* library, const char* name, Function* function) {
  const absl::StatusOr<void*> found = FindFunction(library, name);
  if (!found.ok()) {
    return absl::UnavailableError(absl::StrCat("libnccl.so.2: ", found.status().message()));
  }
  *function = reinterpret_cast<Function>(*found);
  return absl::OkStatus();
}

absl::StatusOr<NcclApi> Load() {
  const absl::StatusOr<void*> library = OpenLibrary({"libnccl.so.2"});
  if (!library.ok()) {
    return absl::UnavailableError(
        absl::StrCat("several GPUs need NCCL 2: ", library.status().message()));
  }
  NcclApi api;
#define TANDEM_NCCL_FIND(name) TANDEM_RETURN_IF_ERROR(Find(*library, #name, &api.name))
  TANDEM_NCCL_FIND(ncclGetVersion);
  TANDEM_NCCL_FIND(ncclGetErrorString);
  TANDEM_NCCL_FIND(ncclCommInitAll);
  TANDEM_NCCL_FIND(ncclCommDestroy);
  TANDEM_NCCL_FIND(ncclCommAbort);
  TANDEM_NCCL_FIND(ncclCommGetAsyncError);
  TANDEM_NCCL_FIND(ncclAllReduce);
  TANDEM_NCCL_FIND(ncclAllGather);
  TANDEM_NCCL_FIND(ncclGroupStart);
  TANDEM_NCCL_FIND(ncclGroupEnd);
#undef TANDEM_NCCL_FIND
  int version = 0;
  TANDEM_RETURN_IF_ERROR(CheckNccl(api, api.ncclGetVersion(&version), "ncclGetVersion"));
  if (version < kOldestVersion) {
    return absl::UnavailableError(
        absl::StrCat("libnccl.so.2 is of version code ", version, "; 2.9 and newer work"));
  }
  return api;
}

}  // namespace

absl::StatusOr<const NcclApi*> LoadNccl() {
  static const auto* loaded = new absl::StatusOr<NcclApi>(Load());
  if (!loaded->ok()) {
    return loaded->status();
  }
  return &**loaded;
}

absl::Status CheckNccl(const NcclApi& api, NcclResult result, const char* what) {
  return result == kNcclSuccess
             ? absl::OkStatus()
             : absl::InternalError(absl::StrCat(what, ": NCCL: ", api.ncclGetErrorString(result),
                                                " (error ", result, ")"));
}

}  // namespace tandem::gpu_worker::device
