#pragma once

#include "absl/status/status.h"
#include "common/model_files/gguf_reader.h"
#include "common/model_files/model_parts.h"

namespace tandem::model_files {

// Fills parts->tokenizer and the end tokens of parts->defaults from the tokenizer.* metadata;
// parts->shape is set already.
absl::Status ReadGgufTokenizer(const GgufFile& gguf, ModelParts* parts);

}  // namespace tandem::model_files
