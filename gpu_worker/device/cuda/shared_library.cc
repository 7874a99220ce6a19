#include "gpu_worker/device/cuda/shared_library.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace tandem::gpu_worker::device {

absl::StatusOr<void*> OpenLibrary(std::initializer_list<const char*> names) {
  std::string reasons;
  for (const char* name : names) {
    if (void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL)) {
      return library;
    }
    const char* reason = dlerror();
    absl::StrAppend(&reasons, reasons.empty() ? "" : "; ", reason != nullptr ? reason : name);
  }
  return absl::NotFoundError(reasons);
}

absl::StatusOr<void*> FindFunction(void* library, const char* name) {
  if (void* function = dlsym(library, name)) {
    return function;
  }
  return absl::NotFoundError(absl::StrCat("it has no function ", name));
}

}  // namespace tandem::gpu_worker::device
