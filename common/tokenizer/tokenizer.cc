#include "common/tokenizer/tokenizer.h"

#include <algorithm>
#include <numeric>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "nlohmann/json.hpp"

namespace tandem::tokenizer {
namespace {

// bos_token and eos_token of tokenizer_config.json: a string, or an object with the content.
std::string ConfigToken(const nlohmann::json& config, const char* key) {
  const auto it = config.is_object() ? config.find(key) : config.end();
  if (!config.is_object() || it == config.end()) {
    return "";
  }
  if (it->is_object()) {
    const auto content = it->find("content");
    return content != it->end() && content->is_string() ? content->get<std::string>() : "";
  }
  return it->is_string() ? it->get<std::string>() : "";
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const TokenizerSpec& spec) {
  switch (spec.kind) {
    case TokenizerSpec::Kind::kNone:
      return absl::FailedPreconditionError("the model has no tokenizer");
    case TokenizerSpec::Kind::kTokenizerJson:
      return BuildTokenizerJson(spec);
    case TokenizerSpec::Kind::kSentencePiece:
      return BuildSentencePiece(spec);
    case TokenizerSpec::Kind::kGgufBpe:
      return BuildGgufBpe(spec);
    case TokenizerSpec::Kind::kGgufSpm:
      return BuildGgufSpm(spec);
    case TokenizerSpec::Kind::kTiktoken:
      return BuildTiktoken(spec);
    case TokenizerSpec::Kind::kTekken:
      return BuildTekken(spec);
  }
  return absl::InvalidArgumentError("unknown kind of tokenizer");
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::Create(const TokenizerSpec& spec) {
  // The ids of BOS and EOS may be known by name only.
  const auto config =
      nlohmann::json::parse(spec.tokenizer_config_json, nullptr, /*allow_exceptions=*/false);
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<Tokenizer> tokenizer, Build(spec));
  const auto resolve = [&](std::optional<int32_t> id, const char* key,
                           std::optional<int32_t> own) -> std::optional<int32_t> {
    const std::string text = ConfigToken(config, key);
    if (const auto named = text.empty() ? std::nullopt : tokenizer->TokenId(text)) return named;
    if (id && *id >= 0 && *id < tokenizer->vocab_size()) return id;
    return own;
  };
  tokenizer->bos_id_ = resolve(spec.bos_id, "bos_token", tokenizer->bos_id_);
  tokenizer->eos_id_ = resolve(spec.eos_id, "eos_token", tokenizer->eos_id_);
  return tokenizer;
}

std::string_view Tokenizer::TokenBytes(int32_t id) const {
  return id >= 0 && id < vocab_size() ? tokens_[static_cast<size_t>(id)].bytes : std::string_view();
}

std::string_view Tokenizer::TokenText(int32_t id) const {
  return id >= 0 && id < vocab_size() ? tokens_[static_cast<size_t>(id)].text : std::string_view();
}

bool Tokenizer::IsSpecial(int32_t id) const {
  return id >= 0 && id < vocab_size() && tokens_[static_cast<size_t>(id)].special;
}

void Tokenizer::IndexTokens() {
  ids_by_text_.resize(tokens_.size());
  std::iota(ids_by_text_.begin(), ids_by_text_.end(), 0);
  std::sort(ids_by_text_.begin(), ids_by_text_.end(), [this](int32_t a, int32_t b) {
    const int order = TokenText(a).compare(TokenText(b));
    return order != 0 ? order < 0 : a < b;
  });
}

std::optional<int32_t> Tokenizer::TokenId(std::string_view text) const {
  const auto it =
      std::lower_bound(ids_by_text_.begin(), ids_by_text_.end(), text,
                       [this](int32_t id, std::string_view t) { return TokenText(id) < t; });
  if (it == ids_by_text_.end() || TokenText(*it) != text || text.empty()) {
    return std::nullopt;
  }
  return *it;
}

}  // namespace tandem::tokenizer
