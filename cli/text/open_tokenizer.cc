#include "cli/text/open_tokenizer.h"

#include <cctype>
#include <span>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/gguf_reader.h"
#include "common/model_files/gguf_tokenizer.h"
#include "common/model_files/model_parts.h"
#include "common/shm/region.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/tokenizer_spec.h"

namespace tandem::cli {
namespace {

using tokenizer::TokenizerSpec;

absl::StatusOr<TokenizerSpec> ReadGguf(const std::string& bytes, const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(
      const model_files::GgufFile gguf,
      model_files::GgufFile::Parse(std::as_bytes(std::span(bytes.data(), bytes.size())), path));
  model_files::ModelParts parts;
  parts.shape.vocab_size = tokenizer::kMaxVocabularySize;  // the file need hold no weights
  TANDEM_RETURN_IF_ERROR(model_files::ReadGgufTokenizer(gguf, &parts));
  return std::move(parts.tokenizer);
}

// "BASE64 0" in the first line.
bool LooksLikeTiktoken(const std::string& bytes) {
  const size_t end = bytes.find('\n');
  const size_t space = bytes.find(' ');
  if (end == std::string::npos || space == std::string::npos || space > end || space == 0) {
    return false;
  }
  for (size_t i = 0; i < end; ++i) {
    const auto c = static_cast<unsigned char>(bytes[i]);
    if (i != space && std::isalnum(c) == 0 && c != '+' && c != '/' && c != '=') return false;
  }
  return true;
}

}  // namespace

absl::StatusOr<std::unique_ptr<tokenizer::Tokenizer>> OpenTokenizer(const std::string& path) {
  TANDEM_ASSIGN_OR_RETURN(const shm::MappedFile file, shm::MappedFile::Open(path));
  std::string bytes(reinterpret_cast<const char*>(file.data()), file.size());
  TokenizerSpec spec;
  if (bytes.starts_with("GGUF")) {
    TANDEM_ASSIGN_OR_RETURN(spec, ReadGguf(bytes, path));
    return tokenizer::Tokenizer::Create(spec);
  }
  const size_t start = bytes.find_first_not_of(" \t\r\n");
  if (start != std::string::npos && bytes[start] == '{') {
    // A tekken file holds token_bytes; a tokenizer.json never does.
    spec.kind = bytes.find("\"token_bytes\"") != std::string::npos
                    ? TokenizerSpec::Kind::kTekken
                    : TokenizerSpec::Kind::kTokenizerJson;
  } else if (LooksLikeTiktoken(bytes)) {
    spec.kind = TokenizerSpec::Kind::kTiktoken;
  } else {
    spec.kind = TokenizerSpec::Kind::kSentencePiece;
  }
  spec.file = std::move(bytes);
  return tokenizer::Tokenizer::Create(spec);
}

}  // namespace tandem::cli
