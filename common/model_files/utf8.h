#pragma once

#include "absl/strings/string_view.h"

namespace tandem::model_files {

// Whether `text` is well-formed UTF-8 (Unicode, table 3-7: no overlong forms, no surrogates).
bool IsUtf8(absl::string_view text);

}  // namespace tandem::model_files
