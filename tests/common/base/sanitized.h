#pragma once

namespace tandem {

// Under a sanitizer everything takes 10 to 50 times as long. What a test repeats over data it may
// repeat less there; a release build runs all of it.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
inline constexpr bool kSanitized = true;
#else
inline constexpr bool kSanitized = false;
#endif

}  // namespace tandem
