#pragma once

#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"

// Debian builds abseil with a string_view of its own that does not convert from and to
// std::string_view; these bridge the two.
namespace tandem::base {

inline absl::string_view AbslView(std::string_view text) { return {text.data(), text.size()}; }
inline std::string_view StdView(absl::string_view text) { return {text.data(), text.size()}; }

namespace internal {
inline absl::string_view CatArgument(std::string_view text) { return AbslView(text); }
inline absl::string_view CatArgument(absl::string_view text) { return text; }
inline absl::string_view CatArgument(const char* text) { return text; }
inline absl::string_view CatArgument(const std::string& text) { return text; }
template <typename T>
const T& CatArgument(const T& value) {
  return value;
}
}  // namespace internal

// absl::StrCat that takes std::string_view too.
template <typename... Args>
std::string StrCat(const Args&... args) {
  return absl::StrCat(internal::CatArgument(args)...);
}
template <typename... Args>
void StrAppend(std::string* out, const Args&... args) {
  absl::StrAppend(out, internal::CatArgument(args)...);
}

}  // namespace tandem::base
