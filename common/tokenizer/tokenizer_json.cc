#include "common/tokenizer/tokenizer_json.h"

#include <algorithm>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/byte_level.h"

namespace tandem::tokenizer {
namespace {

absl::Status Broken(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", what));
}

absl::StatusOr<int32_t> ReadId(const Json& value, const std::string& where) {
  if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
      value.get<int64_t>() >= kMaxVocabularySize) {
    return Broken(absl::StrCat(where, ": bad token id"));
  }
  return static_cast<int32_t>(value.get<int64_t>());
}

void Place(int32_t id, VocabularyToken token, std::vector<VocabularyToken>* tokens) {
  if (static_cast<size_t>(id) >= tokens->size()) {
    tokens->resize(static_cast<size_t>(id) + 1);
  }
  (*tokens)[static_cast<size_t>(id)] = std::move(token);
}

absl::Status ReadAddedTokens(const Json& file, PipelineParts* parts) {
  for (const Json& entry : file.value("added_tokens", Json::array())) {
    AddedToken token;
    token.content = entry.at("content").get<std::string>();
    TANDEM_ASSIGN_OR_RETURN(token.id, ReadId(entry.at("id"), "added_tokens"));
    token.special = entry.value("special", false);
    token.single_word = entry.value("single_word", false);
    token.lstrip = entry.value("lstrip", false);
    token.rstrip = entry.value("rstrip", false);
    token.normalized = entry.value("normalized", false);
    Place(token.id, {token.content, token.content, token.special}, &parts->tokens);
    if (token.normalized) {
      TANDEM_ASSIGN_OR_RETURN(token.content, ApplyNormalizer(parts->normalizer, token.content));
    }
    parts->added.push_back(std::move(token));
  }
  return absl::OkStatus();
}

// BOS and EOS around a text: TemplateProcessing's "single", or the pair of the Roberta and Bert
// forms.
absl::Status ReadPostProcessor(const Json& post, PipelineParts* parts) {
  if (post.is_null()) {
    return absl::OkStatus();
  }
  const auto type = post.at("type").get<std::string>();
  if (type == "Sequence") {
    for (const Json& part : post.at("processors")) {
      TANDEM_RETURN_IF_ERROR(ReadPostProcessor(part, parts));
    }
    return absl::OkStatus();
  }
  if (type == "ByteLevel") {  // offsets only
    return absl::OkStatus();
  }
  if (type == "RobertaProcessing" || type == "BertProcessing") {
    TANDEM_ASSIGN_OR_RETURN(const int32_t cls, ReadId(post.at("cls").at(1), "post_processor.cls"));
    TANDEM_ASSIGN_OR_RETURN(const int32_t sep, ReadId(post.at("sep").at(1), "post_processor.sep"));
    parts->prefix_ids.push_back(cls);
    parts->suffix_ids.push_back(sep);
    return absl::OkStatus();
  }
  if (type != "TemplateProcessing") {
    return absl::UnimplementedError(absl::StrCat("tokenizer.json: post_processor ", type));
  }
  bool after_text = false;
  for (const Json& piece : post.at("single")) {
    if (piece.contains("Sequence")) {
      after_text = true;
      continue;
    }
    const auto name = piece.at("SpecialToken").at("id").get<std::string>();
    for (const Json& value : post.at("special_tokens").at(name).at("ids")) {
      TANDEM_ASSIGN_OR_RETURN(const int32_t id, ReadId(value, "post_processor"));
      (after_text ? parts->suffix_ids : parts->prefix_ids).push_back(id);
    }
  }
  return absl::OkStatus();
}

absl::StatusOr<std::unique_ptr<Tokenizer>> Build(const TokenizerSpec& spec) {
  const Json file = Json::parse(spec.file, nullptr, /*allow_exceptions=*/false);
  if (!file.is_object() || !file.contains("model")) {
    return Broken("is no JSON object with a model");
  }
  PipelineParts parts;
  TANDEM_RETURN_IF_ERROR(ReadNormalizer(file.value("normalizer", Json()), &parts.normalizer));
  bool byte_level = false;
  TANDEM_RETURN_IF_ERROR(
      ReadPreTokenizer(file.value("pre_tokenizer", Json()), &parts.pre_tokenizer, &byte_level));
  std::vector<std::string> control;
  for (const Json& entry : file.value("added_tokens", Json::array())) {
    if (entry.value("special", false)) control.push_back(entry.at("content").get<std::string>());
  }
  TANDEM_RETURN_IF_ERROR(ReadModel(file.at("model"), byte_level, control, &parts));
  const Json& model = file.at("model");
  if (!byte_level && model.contains("merges") && !model.value("ignore_merges", false)) {
    CutAtSpaces(&parts);
  }
  TokenDecoder decoder;
  TANDEM_RETURN_IF_ERROR(decoder.Read(file.value("decoder", Json())));
  for (VocabularyToken& token : parts.tokens) {
    token.bytes = decoder.BytesOf(token.text);
  }
  parts.drops_first_space = decoder.drops_first_space();
  TANDEM_RETURN_IF_ERROR(ReadAddedTokens(file, &parts));
  TANDEM_RETURN_IF_ERROR(ReadPostProcessor(file.value("post_processor", Json()), &parts));
  parts.bos_id = parts.prefix_ids.empty() ? std::nullopt : std::optional(parts.prefix_ids.front());
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTokenizerJson(const TokenizerSpec& spec) {
  try {
    return Build(spec);
  } catch (const Json::exception& error) {
    return Broken(error.what());
  }
}

}  // namespace tandem::tokenizer
