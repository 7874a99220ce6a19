#pragma once

#include <string_view>

namespace tandem::structured_output {

enum class FormatKind { kPattern, kUnsupported, kAnnotation };

struct TextFormat {
  FormatKind kind = FormatKind::kAnnotation;
  std::string_view pattern;  // the whole text, for kPattern
};

// What JSON Schema's `format` of this name asks of a string. A name that the standard does not know
// asks for nothing.
TextFormat FindFormat(std::string_view name);

}  // namespace tandem::structured_output
