#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <optional>

// What the fake driver was asked for so far, of launches and copies that were queued or captured.
struct FakeCudaCounts {
  uint64_t kernels = 0;
  uint64_t copies_to_host = 0;
  uint64_t copies_to_device = 0;
};

// Empty where this process uses no fake driver.
inline std::optional<FakeCudaCounts> ReadFakeCudaCounts() {
  void* driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  if (driver == nullptr) {
    return std::nullopt;
  }
  using Read = void (*)(FakeCudaCounts*);
  const auto read = reinterpret_cast<Read>(dlsym(driver, "fakeCudaCounts"));
  FakeCudaCounts counts;
  if (read != nullptr) {
    read(&counts);
  }
  dlclose(driver);
  return read != nullptr ? std::optional(counts) : std::nullopt;
}
