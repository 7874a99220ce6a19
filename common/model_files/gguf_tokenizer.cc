#include "common/model_files/gguf_tokenizer.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/utf8.h"

namespace tandem::model_files {
namespace {

using tokenizer::TokenizerSpec;

constexpr int32_t kControl = 3;  // token type

absl::Status ReadKind(const GgufFile& gguf, TokenizerSpec* spec) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> model,
                          gguf.String("tokenizer.ggml.model"));
  if (!model || *model == "none" || *model == "no_vocab") {
    spec->kind = TokenizerSpec::Kind::kNone;
  } else if (*model == "gpt2") {
    spec->kind = TokenizerSpec::Kind::kGgufBpe;
  } else if (*model == "llama") {
    spec->kind = TokenizerSpec::Kind::kGgufSpm;
  } else {
    return absl::UnimplementedError(absl::StrCat(gguf.file(), ": tokenizer.ggml.model is ",
                                                 model->substr(0, 40),
                                                 "; supported: gpt2, llama, none"));
  }
  return absl::OkStatus();
}

// The vocabulary's parallel arrays: as many entries as there are tokens, or none.
absl::Status ReadVocabulary(const GgufFile& gguf, int32_t vocab_size, TokenizerSpec* spec) {
  TANDEM_ASSIGN_OR_RETURN(spec->gguf_tokens, gguf.Strings("tokenizer.ggml.tokens"));
  TANDEM_ASSIGN_OR_RETURN(spec->gguf_scores, gguf.Floats("tokenizer.ggml.scores"));
  TANDEM_ASSIGN_OR_RETURN(spec->gguf_types, gguf.Ints("tokenizer.ggml.token_type"));
  TANDEM_ASSIGN_OR_RETURN(spec->gguf_merges, gguf.Strings("tokenizer.ggml.merges"));
  const size_t count = spec->gguf_tokens.size();
  const auto invalid = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(gguf.file(), ": tokenizer.ggml.", what));
  };
  if (count == 0) {
    return invalid("tokens is missing or empty");
  }
  if (count > static_cast<size_t>(vocab_size)) {
    return invalid(absl::StrCat("tokens has ", count, " entries; token_embd.weight has ",
                                vocab_size, " rows"));
  }
  if (!spec->gguf_scores.empty() && spec->gguf_scores.size() != count) {
    return invalid("scores has another length than tokens");
  }
  if (!spec->gguf_types.empty() && spec->gguf_types.size() != count) {
    return invalid("token_type has another length than tokens");
  }
  return absl::OkStatus();
}

// Text that later travels as such: UTF-8 or refused.
absl::Status ReadText(const GgufFile& gguf, absl::string_view key, std::string* out) {
  TANDEM_ASSIGN_OR_RETURN(const std::optional<std::string> text, gguf.String(key));
  *out = text.value_or("");
  return IsUtf8(*out) ? absl::OkStatus()
                      : absl::InvalidArgumentError(
                            absl::StrCat(gguf.file(), ": ", key, " is not valid UTF-8"));
}

absl::StatusOr<std::optional<int32_t>> TokenId(const GgufFile& gguf, absl::string_view key,
                                               int32_t vocab_size) {
  // Writers put 2^32 - 1 (or -1) where a model has no such token.
  const std::string full = absl::StrCat("tokenizer.ggml.", key);
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> any, gguf.Int(full, INT64_MIN, INT64_MAX));
  if (!any || *any == -1 || *any == int64_t{UINT32_MAX}) {
    return std::optional<int32_t>();
  }
  TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> id, gguf.Int(full, 0, vocab_size - 1));
  return std::optional<int32_t>(static_cast<int32_t>(*id));
}

// The end of text, and of a chat turn where that is another token: older files do not name the
// latter, so the control tokens with the usual spellings count as well.
absl::Status ReadEndTokens(const GgufFile& gguf, ModelParts* parts) {
  std::vector<int32_t>& ids = parts->defaults.eos_token_ids;
  const auto add = [&ids](std::optional<int32_t> id) {
    if (id && std::find(ids.begin(), ids.end(), *id) == ids.end()) {
      ids.push_back(*id);
    }
  };
  const int32_t vocab_size = parts->shape.vocab_size;
  add(parts->tokenizer.eos_id);
  for (const char* key : {"eot_token_id", "eom_token_id"}) {
    TANDEM_ASSIGN_OR_RETURN(const std::optional<int32_t> id, TokenId(gguf, key, vocab_size));
    add(id);
  }
  const TokenizerSpec& spec = parts->tokenizer;
  for (size_t i = 0; i < spec.gguf_types.size(); ++i) {
    const std::string& token = spec.gguf_tokens[i];
    if (spec.gguf_types[i] == kControl &&
        (token == "<|eot_id|>" || token == "<|im_end|>" || token == "<|end|>")) {
      add(static_cast<int32_t>(i));
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadGgufTokenizer(const GgufFile& gguf, ModelParts* parts) {
  TokenizerSpec& spec = parts->tokenizer;
  const int32_t vocab_size = parts->shape.vocab_size;
  TANDEM_RETURN_IF_ERROR(ReadKind(gguf, &spec));
  if (spec.kind != TokenizerSpec::Kind::kNone) {
    TANDEM_RETURN_IF_ERROR(ReadVocabulary(gguf, vocab_size, &spec));
  }
  TANDEM_RETURN_IF_ERROR(ReadText(gguf, "tokenizer.ggml.pre", &spec.gguf_pre));
  TANDEM_ASSIGN_OR_RETURN(const std::optional<bool> space,
                          gguf.Bool("tokenizer.ggml.add_space_prefix"));
  spec.gguf_add_space_prefix = space.value_or(true);
  TANDEM_ASSIGN_OR_RETURN(spec.add_bos, gguf.Bool("tokenizer.ggml.add_bos_token"));
  TANDEM_ASSIGN_OR_RETURN(spec.add_eos, gguf.Bool("tokenizer.ggml.add_eos_token"));
  TANDEM_ASSIGN_OR_RETURN(spec.bos_id, TokenId(gguf, "bos_token_id", vocab_size));
  TANDEM_ASSIGN_OR_RETURN(spec.eos_id, TokenId(gguf, "eos_token_id", vocab_size));
  TANDEM_ASSIGN_OR_RETURN(spec.unknown_id, TokenId(gguf, "unknown_token_id", vocab_size));
  TANDEM_RETURN_IF_ERROR(ReadText(gguf, "tokenizer.chat_template", &spec.chat_template));
  return ReadEndTokens(gguf, parts);
}

}  // namespace tandem::model_files
