#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model_files/model_parts.h"

namespace tandem::model_files {

// Reads the text of a config.json, in the classic form (rope_theta, rope_scaling) or that of
// transformers 5 (rope_parameters), into parts->shape, the bos and eos ids of parts->tokenizer and
// parts->defaults.eos_token_ids. `file` names it in errors.
absl::Status ReadHfConfig(absl::string_view text, const std::string& file,
                          const OpenOptions& options, ModelParts* parts);

// Reads the text of a generation_config.json over parts->defaults; its eos ids replace those of
// config.json.
absl::Status ReadGenerationConfig(absl::string_view text, const std::string& file,
                                  ModelParts* parts);

}  // namespace tandem::model_files
