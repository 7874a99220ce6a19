#pragma once

#include <initializer_list>
#include <string>

#include "absl/status/statusor.h"

namespace tandem::gpu_worker::device {

// The first of `names` that the dynamic loader finds; stays loaded. NotFound with the loader's
// words about each.
absl::StatusOr<void*> OpenLibrary(std::initializer_list<const char*> names);

// NotFound names the function.
absl::StatusOr<void*> FindFunction(void* library, const char* name);

}  // namespace tandem::gpu_worker::device
