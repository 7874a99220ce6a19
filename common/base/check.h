#pragma once

#include <string_view>

namespace tandem::base {

// Writes file, line and message to stderr and aborts.
[[noreturn]] void CheckFailed(const char* file, int line, std::string_view message);

}  // namespace tandem::base

// For broken invariants of our own only, never for input, files, peers or the network.
#define TANDEM_CHECK(condition)                                                     \
  do {                                                                              \
    if (!(condition)) {                                                             \
      ::tandem::base::CheckFailed(__FILE__, __LINE__, "CHECK failed: " #condition); \
    }                                                                               \
  } while (false)
