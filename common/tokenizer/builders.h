#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace tandem::tokenizer {

// One per kind of vocabulary; Tokenizer::Create picks.
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizerJson(const TokenizerSpec& spec);
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildGgufBpe(const TokenizerSpec& spec);
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildGgufSpm(const TokenizerSpec& spec);
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildSentencePiece(const TokenizerSpec& spec);
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTiktoken(const TokenizerSpec& spec);
absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTekken(const TokenizerSpec& spec);

// Vocabularies above this are refused (the largest in use has 262,144 tokens).
inline constexpr int32_t kMaxVocabularySize = 4 << 20;

}  // namespace tandem::tokenizer
