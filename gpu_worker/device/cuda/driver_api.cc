#include "gpu_worker/device/cuda/driver_api.h"

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "gpu_worker/device/cuda/shared_library.h"

namespace tandem::gpu_worker::device {
namespace {

#define TANDEM_CUDA_TEXT_OF(name) #name
#define TANDEM_CUDA_TEXT(name) TANDEM_CUDA_TEXT_OF(name)

absl::Status FindFunctions(void* library, DriverApi* api) {
#define TANDEM_CUDA_FIND(name)                                                         \
  {                                                                                    \
    const absl::StatusOr<void*> found = FindFunction(library, TANDEM_CUDA_TEXT(name)); \
    if (!found.ok()) {                                                                 \
      return absl::UnavailableError(                                                   \
          absl::StrCat("the CUDA driver is too old: ", found.status().message()));     \
    }                                                                                  \
    api->name = reinterpret_cast<decltype(api->name)>(*found);                         \
  }
  TANDEM_CUDA_DRIVER_FUNCTIONS(TANDEM_CUDA_FIND)
#undef TANDEM_CUDA_FIND
  return absl::OkStatus();
}

absl::StatusOr<DriverApi> Load() {
  const absl::StatusOr<void*> library = OpenLibrary({"libcuda.so.1"});
  if (!library.ok()) {
    return absl::UnavailableError(
        absl::StrCat("there is no CUDA driver: ", library.status().message()));
  }
  DriverApi api;
  TANDEM_RETURN_IF_ERROR(FindFunctions(*library, &api));
  if (const CUresult result = api.cuInit(0); result != CUDA_SUCCESS) {
    return absl::UnavailableError(
        absl::StrCat("no CUDA device: ", DriverError(api, result, "cuInit").message()));
  }
  int count = 0;
  if (api.cuDeviceGetCount(&count) != CUDA_SUCCESS || count < 1) {
    return absl::UnavailableError("the CUDA driver sees no device");
  }
  return api;
}

}  // namespace

absl::StatusOr<const DriverApi*> LoadDriver() {
  static const auto* loaded = new absl::StatusOr<DriverApi>(Load());
  if (!loaded->ok()) {
    return loaded->status();
  }
  return &**loaded;
}

absl::Status DriverError(const DriverApi& api, CUresult result, const char* what) {
  const char* text = nullptr;
  if (api.cuGetErrorString(result, &text) != CUDA_SUCCESS || text == nullptr) {
    text = "unknown error";
  }
  const std::string message =
      absl::StrCat(what, ": ", text, " (CUDA error ", static_cast<int>(result), ")");
  return result == CUDA_ERROR_OUT_OF_MEMORY ? absl::ResourceExhaustedError(message)
                                            : absl::InternalError(message);
}

}  // namespace tandem::gpu_worker::device
