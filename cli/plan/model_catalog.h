#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "common/model_shape/model_shape.h"

namespace tandem::cli {

struct NamedShape {
  std::string name;
  ModelShape shape;
};

// A built-in name (llama-2-7b, llama-3.1-8b, llama-3.1-70b), a config.json, a folder with one, or a
// .gguf file. Errors say what is allowed.
absl::StatusOr<NamedShape> FindModelShape(const std::string& model);

}  // namespace tandem::cli
