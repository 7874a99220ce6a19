#include <algorithm>
#include <charconv>
#include <cmath>
#include <memory>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/tokenizer/builders.h"
#include "common/tokenizer/byte_level.h"
#include "common/tokenizer/tokenizer_json.h"
#include "common/tokenizer/unigram.h"

namespace tandem::tokenizer {
namespace {

absl::Status Broken(const std::string& what) {
  return absl::InvalidArgumentError(absl::StrCat("tokenizer.json: ", what));
}

// The text as the merges see it: bytes for a byte-level vocabulary. Nothing for a token that text
// cannot become.
std::optional<std::string> SymbolText(const std::string& text, bool byte_level) {
  return byte_level ? BytesOfByteLevel(text) : std::optional(text);
}

absl::StatusOr<std::pair<std::string, std::string>> ReadPair(const Json& merge, size_t rank) {
  if (merge.is_array() && merge.size() == 2) {
    return std::pair(merge[0].get<std::string>(), merge[1].get<std::string>());
  }
  if (merge.is_string()) {
    const auto text = merge.get<std::string>();
    const size_t space = text.find(' ', 1);
    if (space != std::string::npos) {
      return std::pair(text.substr(0, space), text.substr(space + 1));
    }
  }
  return Broken(absl::StrCat("model.merges[", rank, "] is no pair"));
}

absl::StatusOr<MergeTable> ReadMerges(const Json& merges, const TextToId& ids) {
  MergeTable table;
  table.Reserve(merges.size());
  for (size_t rank = 0; rank < merges.size(); ++rank) {
    TANDEM_ASSIGN_OR_RETURN(const auto pair, ReadPair(merges[rank], rank));
    const auto left = ids.find(pair.first);
    const auto right = ids.find(pair.second);
    const auto merged = ids.find(pair.first + pair.second);
    if (left == ids.end() || right == ids.end() || merged == ids.end()) {
      return Broken(absl::StrCat("model.merges[", rank, "] names a token that is not in the ",
                                 "vocabulary: ", pair.first, " ", pair.second));
    }
    table.Add(left->second, right->second, static_cast<int32_t>(rank), merged->second);
  }
  return table;
}

// Ids of "<0x00>" to "<0xFF>", or none when one is missing.
std::vector<int32_t> ByteIds(const TextToId& ids) {
  std::vector<int32_t> byte_ids;
  for (int byte = 0; byte < 256; ++byte) {
    constexpr char kDigits[] = "0123456789ABCDEF";
    const std::string text{'<', '0', 'x', kDigits[byte / 16], kDigits[byte % 16], '>'};
    const auto it = ids.find(text);
    if (it == ids.end()) {
      return {};
    }
    byte_ids.push_back(it->second);
  }
  return byte_ids;
}

absl::Status ReadVocabulary(const Json& vocab, TextToId* ids,
                            std::vector<VocabularyToken>* tokens) {
  for (const auto& [text, value] : vocab.items()) {
    if (!value.is_number_integer() || value.get<int64_t>() < 0 ||
        value.get<int64_t>() >= kMaxVocabularySize) {
      return Broken(absl::StrCat("model.vocab: bad id of ", text));
    }
    const auto id = value.get<size_t>();
    if (id >= tokens->size()) tokens->resize(id + 1);
    (*tokens)[id].text = text;
    ids->emplace(text, static_cast<int32_t>(id));
  }
  return absl::OkStatus();
}

bool IsSet(const Json& model, const char* key) {
  const auto it = model.find(key);
  if (it == model.end() || it->is_null() || *it == 0) {
    return false;
  }
  return !it->is_string() || !it->get_ref<const std::string&>().empty();
}

absl::Status ReadBpe(const Json& model, bool byte_level, const std::vector<std::string>& control,
                     PipelineParts* parts) {
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (IsSet(model, key)) {
      return absl::UnimplementedError(absl::StrCat("tokenizer.json: model.", key));
    }
  }
  TextToId ids;
  TANDEM_RETURN_IF_ERROR(ReadVocabulary(model.at("vocab"), &ids, &parts->tokens));
  TANDEM_ASSIGN_OR_RETURN(MergeTable merges, ReadMerges(model.at("merges"), ids));
  BpeOptions options;
  options.byte_level = byte_level;
  options.whole_words = model.value("ignore_merges", false);
  options.fuse_unknown = model.value("fuse_unk", false);
  if (IsSet(model, "unk_token")) {
    const auto unknown = ids.find(model.at("unk_token").get<std::string>());
    if (unknown == ids.end()) {
      return Broken("model.unk_token is not in the vocabulary");
    }
    options.unknown_id = unknown->second;
  }
  std::vector<int32_t> byte_ids;
  if (model.value("byte_fallback", false)) {
    byte_ids = ByteIds(ids);
  }
  if (options.whole_words) {
    for (const std::string& text : control) ids.erase(text);
  }
  if (byte_level) {
    TextToId by_bytes;
    for (const auto& [text, id] : ids) {
      if (auto bytes = SymbolText(text, byte_level)) by_bytes.emplace(*std::move(bytes), id);
    }
    ids = std::move(by_bytes);
  }
  parts->model = std::make_unique<BpeModel>(std::move(options), std::move(ids), std::move(merges),
                                            std::move(byte_ids));
  return absl::OkStatus();
}

// The tokenizers library reads a score as its digits divided by a power of ten, which can differ
// from the nearest double in the last bit; ties between cuts hang on that bit.
double AsTokenizersReads(double score) {
  char text[64];
  const auto end =
      std::to_chars(text, text + sizeof(text), std::fabs(score), std::chars_format::scientific);
  uint64_t digits = 0;
  int exponent = 0;
  const char* at = text;
  for (bool fraction = false; at != end.ptr && *at != 'e'; ++at) {
    if (*at == '.') {
      fraction = true;
      continue;
    }
    digits = digits * 10 + static_cast<uint64_t>(*at - '0');
    exponent -= fraction ? 1 : 0;
  }
  int power = 0;
  if (at != end.ptr) {
    const char* from = at[1] == '+' ? at + 2 : at + 1;
    std::from_chars(from, end.ptr, power);
  }
  exponent += power;
  if (exponent > 0 || exponent < -300) {
    return score;
  }
  const double value = static_cast<double>(digits) / std::pow(10.0, -exponent);
  return score < 0 ? -value : value;
}

absl::Status ReadUnigram(const Json& model, PipelineParts* parts) {
  const Json& vocab = model.at("vocab");
  if (!vocab.is_array() || vocab.size() > static_cast<size_t>(kMaxVocabularySize)) {
    return Broken("model.vocab is no list of a sane size");
  }
  std::vector<UnigramModel::Piece> pieces;
  TextToId ids;
  for (const Json& entry : vocab) {
    UnigramModel::Piece piece{entry.at(0).get<std::string>(),
                              AsTokenizersReads(entry.at(1).get<double>())};
    ids.emplace(piece.text, static_cast<int32_t>(pieces.size()));
    parts->tokens.push_back({piece.text, "", false});
    pieces.push_back(std::move(piece));
  }
  if (!model.at("unk_id").is_number_integer() || model.at("unk_id").get<int64_t>() < 0 ||
      model.at("unk_id").get<int64_t>() >= static_cast<int64_t>(pieces.size())) {
    return Broken("model.unk_id is not in the vocabulary");
  }
  std::vector<int32_t> byte_ids;
  if (model.value("byte_fallback", false)) {
    byte_ids = ByteIds(ids);
  }
  parts->model = std::make_unique<UnigramModel>(pieces, model.at("unk_id").get<int32_t>(),
                                                std::move(byte_ids));
  return absl::OkStatus();
}

}  // namespace

absl::Status ReadModel(const Json& value, bool byte_level, const std::vector<std::string>& control,
                       PipelineParts* parts) {
  std::string type = value.value("type", std::string());
  if (type.empty()) {  // older files leave it out
    type = value.contains("merges") ? "BPE" : "Unigram";
  }
  if (type == "BPE") return ReadBpe(value, byte_level, control, parts);
  if (type == "Unigram" && !byte_level) return ReadUnigram(value, parts);
  return absl::UnimplementedError(absl::StrCat("tokenizer.json: model of type ", type));
}

}  // namespace tandem::tokenizer
