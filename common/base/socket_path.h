#pragma once

#include <string_view>

namespace tandem::base {

// Whether gRPC takes `path` in `unix:PATH` as it stands: it reads the address as a URI, percent
// signs decoded and query cut off, and its path as a list with commas.
constexpr bool IsPlainSocketPath(std::string_view path) {
  return path.find_first_of(",%?#") == std::string_view::npos;
}

}  // namespace tandem::base
