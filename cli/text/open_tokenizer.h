#pragma once

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::cli {

// Opens a tokenizer file by what it holds: tokenizer.json, GGUF, sentencepiece model, Llama 3's
// tiktoken file, tekken file.
absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> OpenTokenizer(const std::string& path);

}  // namespace tandem::cli
