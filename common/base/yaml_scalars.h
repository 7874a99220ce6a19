#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

namespace tandem::base {

// A plain value of a YAML document with the keys that lead to it.
struct YamlScalar {
  std::string path;  // keys joined by dots: "gpu.tflops.float16"
  std::string text;
  int line = 0;  // of the value, from 1
};

// The plain values of a document of nested maps, in its order. InvalidArgument, with the line, for
// what is no such document: lists, empty values, keys that occur twice, texts over 1 MiB, more than
// 8 levels.
absl::StatusOr<std::vector<YamlScalar>> ReadYamlScalars(std::string_view text);

}  // namespace tandem::base
