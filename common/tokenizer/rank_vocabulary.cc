#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/patterns.h"
#include "common/tokenizer/pipeline_tokenizer.h"
#include "common/tokenizer/unicode.h"
#include "nlohmann/json.hpp"

namespace tandem::tokenizer {
namespace {

constexpr size_t kLlama3Ranks = 128000;
constexpr size_t kLlama3Specials = 256;

// A vocabulary in which the token's rank is its priority as a merge, as tiktoken has it.
struct RankVocabulary {
  std::vector<std::string> ranks;     // bytes by rank
  std::vector<std::string> specials;  // control tokens, in the order of their ids
  bool specials_first = false;        // their ids come before the ranks', else after
  std::string pattern;
};

std::string Printable(const std::string& bytes) {
  if (!FindInvalidUtf8(bytes)) {
    return bytes;
  }
  std::string out;
  for (const char byte : bytes) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const auto value = static_cast<uint8_t>(byte);
    absl::StrAppend(&out, "<0x", std::string{kDigits[value / 16], kDigits[value % 16]}, ">");
  }
  return out;
}

// Every way to cut a token in two tokens is a merge of the token's rank.
absl::StatusOr<std::unique_ptr<WordModel>> BuildModel(const RankVocabulary& vocabulary,
                                                      int32_t first_id) {
  TextToId ids;
  for (size_t rank = 0; rank < vocabulary.ranks.size(); ++rank) {
    ids.emplace(vocabulary.ranks[rank], first_id + static_cast<int32_t>(rank));
  }
  for (int byte = 0; byte < 256; ++byte) {
    if (!ids.contains(std::string(1, static_cast<char>(byte)))) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokenizer: byte ", byte, " is not in the vocabulary"));
    }
  }
  MergeTable merges;
  for (size_t rank = 0; rank < vocabulary.ranks.size(); ++rank) {
    const std::string_view bytes = vocabulary.ranks[rank];
    for (size_t cut = 1; cut < bytes.size(); ++cut) {
      const auto left = ids.find(bytes.substr(0, cut));
      const auto right = left == ids.end() ? ids.end() : ids.find(bytes.substr(cut));
      if (right != ids.end()) {
        merges.Add(left->second, right->second, static_cast<int32_t>(rank),
                   first_id + static_cast<int32_t>(rank));
      }
    }
  }
  BpeOptions options;
  options.byte_level = true;
  options.whole_words = true;
  return std::make_unique<BpeModel>(std::move(options), std::move(ids), std::move(merges),
                                    std::vector<int32_t>());
}

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildRanks(const RankVocabulary& vocabulary,
                                                      const char* bos, const char* eos) {
  PipelineParts parts;
  const auto add_specials = [&] {
    for (const std::string& text : vocabulary.specials) {
      AddedToken added;
      added.id = static_cast<int32_t>(parts.tokens.size());
      added.content = text;
      added.special = true;
      if (text == bos) parts.bos_id = added.id;
      if (text == eos) parts.eos_id = added.id;
      parts.tokens.push_back({text, text, true});
      parts.added.push_back(std::move(added));
    }
  };
  if (vocabulary.specials_first) add_specials();
  const auto first_id = static_cast<int32_t>(parts.tokens.size());
  for (const std::string& bytes : vocabulary.ranks) {
    parts.tokens.push_back({Printable(bytes), bytes, false});
  }
  if (!vocabulary.specials_first) add_specials();
  TANDEM_ASSIGN_OR_RETURN(parts.model, BuildModel(vocabulary, first_id));
  PreTokenizerStep step;
  TANDEM_ASSIGN_OR_RETURN(step.regex, Regex::Compile(vocabulary.pattern));
  parts.pre_tokenizer.push_back(std::move(step));
  if (parts.bos_id) parts.prefix_ids.push_back(*parts.bos_id);
  return std::make_unique<PipelineTokenizer>(std::move(parts));
}

std::vector<std::string> Llama3Specials() {
  std::vector<std::string> specials = {"<|begin_of_text|>",
                                       "<|end_of_text|>",
                                       "<|reserved_special_token_0|>",
                                       "<|reserved_special_token_1|>",
                                       "<|finetune_right_pad_id|>",
                                       "<|step_id|>",
                                       "<|start_header_id|>",
                                       "<|end_header_id|>",
                                       "<|eom_id|>",
                                       "<|eot_id|>",
                                       "<|python_tag|>",
                                       "<|image|>"};
  for (int i = 2; specials.size() < kLlama3Specials; ++i) {
    specials.push_back(absl::StrCat("<|reserved_special_token_", i, "|>"));
  }
  return specials;
}

std::vector<std::string> TekkenSpecials(size_t count) {
  std::vector<std::string> specials = {"<unk>",
                                       "<s>",
                                       "</s>",
                                       "[INST]",
                                       "[/INST]",
                                       "[AVAILABLE_TOOLS]",
                                       "[/AVAILABLE_TOOLS]",
                                       "[TOOL_RESULTS]",
                                       "[/TOOL_RESULTS]",
                                       "[TOOL_CALLS]",
                                       "[IMG]",
                                       "<pad>",
                                       "[IMG_BREAK]",
                                       "[IMG_END]",
                                       "[PREFIX]",
                                       "[MIDDLE]",
                                       "[SUFFIX]"};
  while (specials.size() < count) {
    specials.push_back(absl::StrCat("<SPECIAL_", specials.size(), ">"));
  }
  specials.resize(count);
  return specials;
}

absl::Status ReadTekken(const nlohmann::json& file, RankVocabulary* vocabulary) {
  const auto& config = file.at("config");
  const auto size = config.at("default_vocab_size").get<int64_t>();
  const auto specials = config.at("default_num_special_tokens").get<int64_t>();
  if (specials < 0 || size < specials || size > kMaxVocabularySize) {
    return absl::InvalidArgumentError("tekken: default_vocab_size and default_num_special_tokens");
  }
  vocabulary->pattern = config.at("pattern").get<std::string>();
  vocabulary->specials_first = true;
  vocabulary->specials = TekkenSpecials(static_cast<size_t>(specials));
  if (const auto it = file.find("special_tokens"); it != file.end() && it->is_array()) {
    for (const auto& token : *it) {
      const auto rank = token.at("rank").get<int64_t>();
      if (rank < 0 || rank >= specials) {
        return absl::InvalidArgumentError("tekken: special_tokens: rank out of range");
      }
      vocabulary->specials[static_cast<size_t>(rank)] = token.at("token_str").get<std::string>();
    }
  }
  const auto ranks = static_cast<size_t>(size - specials);  // the file may hold more
  for (const auto& token : file.at("vocab")) {
    if (vocabulary->ranks.size() == ranks) break;
    std::string bytes;
    if (token.at("rank").get<size_t>() != vocabulary->ranks.size() ||
        !absl::Base64Unescape(token.at("token_bytes").get<std::string>(), &bytes)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tekken: vocab[", vocabulary->ranks.size(), "]: bad rank or bytes"));
    }
    vocabulary->ranks.push_back(std::move(bytes));
  }
  return absl::OkStatus();
}

absl::Status ReadTiktoken(const std::string& file, RankVocabulary* vocabulary) {
  for (size_t at = 0; at < file.size();) {
    const size_t end = std::min(file.find('\n', at), file.size());
    const std::string line = file.substr(at, end - at);
    at = end + 1;
    if (line.empty()) continue;
    const size_t space = line.find(' ');
    std::string bytes;
    uint64_t rank = 0;
    if (space == std::string::npos || !absl::Base64Unescape(line.substr(0, space), &bytes) ||
        !absl::SimpleAtoi(line.substr(space + 1), &rank) || rank != vocabulary->ranks.size() ||
        rank >= static_cast<uint64_t>(kMaxVocabularySize)) {
      return absl::InvalidArgumentError(absl::StrCat("tiktoken file: line ",
                                                     vocabulary->ranks.size() + 1,
                                                     " is not base64 bytes and the next rank"));
    }
    vocabulary->ranks.push_back(std::move(bytes));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTiktoken(const TokenizerSpec& spec) {
  RankVocabulary vocabulary;
  TANDEM_RETURN_IF_ERROR(ReadTiktoken(spec.file, &vocabulary));
  if (vocabulary.ranks.size() != kLlama3Ranks) {
    return absl::UnimplementedError(
        absl::StrCat("tiktoken file with ", vocabulary.ranks.size(),
                     " ranks: its pattern and control tokens are not in the file, and only those "
                     "of Llama 3 (128000 ranks) are known"));
  }
  vocabulary.pattern = kLlama3Pattern;
  vocabulary.specials = Llama3Specials();
  return BuildRanks(vocabulary, "<|begin_of_text|>", "<|end_of_text|>");
}

absl::StatusOr<std::unique_ptr<Tokenizer>> BuildTekken(const TokenizerSpec& spec) {
  RankVocabulary vocabulary;
  try {
    TANDEM_RETURN_IF_ERROR(ReadTekken(
        nlohmann::json::parse(spec.file, nullptr, /*allow_exceptions=*/false), &vocabulary));
  } catch (const nlohmann::json::exception& error) {
    return absl::InvalidArgumentError(absl::StrCat("tekken: ", error.what()));
  }
  return BuildRanks(vocabulary, "<s>", "</s>");
}

}  // namespace tandem::tokenizer
