// Vocabularies against what the reference libraries give for them.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "tests/common/tokenizer/text_data.h"

namespace tandem::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

std::map<std::string, std::string> Texts() {
  std::map<std::string, std::string> texts;
  for (const TestJson& row : ReadTestLines("text/texts.jsonl")) {
    std::string text = row.value("text", std::string());
    for (int i = 0; i < row.value("times", 0); ++i) text += row["repeat"].get<std::string>();
    texts[row["id"]] = text;
  }
  return texts;
}

Ids Encode(const Tokenizer& tokenizer, const std::string& text, bool special, bool post) {
  EncodeOptions options;
  options.parse_special = special;
  options.add_special = post;
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids();
}

void ExpectEncodings(const Tokenizer& tokenizer, const std::string& folder) {
  const auto texts = Texts();
  int checked = 0;
  for (const TestJson& row : ReadTestLines(folder + "/encode.jsonl")) {
    const std::string id = row["id"];
    const std::string text = row.contains("text") ? row["text"].get<std::string>() : texts.at(id);
    const struct {
      const char* key;
      bool special, post;
    } kinds[] = {{"ids", false, false},
                 {"ids_special", true, false},
                 {"ids_special_post", true, true},
                 {"ids_with_bos", false, true}};
    for (const auto& kind : kinds) {
      if (!row.contains(kind.key)) continue;
      EXPECT_EQ(Encode(tokenizer, text, kind.special, kind.post), row[kind.key].get<Ids>())
          << folder << " " << id << " " << kind.key;
      ++checked;
    }
  }
  EXPECT_GT(checked, 60);
}

class TokenizerJson : public testing::TestWithParam<const char*> {};

TEST_P(TokenizerJson, EncodesLikeTheReference) {
  const std::string folder = std::string("text/tokenizer_json/") + GetParam();
  const auto tokenizer = OpenTestTokenizerJson(folder + "/tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  ExpectEncodings(*tokenizer, folder);
}

INSTANTIATE_TEST_SUITE_P(Own, TokenizerJson,
                         testing::Values("bl_gpt2", "bl_qwen2_nfc", "spm_bpe_legacy",
                                         "spm_bpe_metaspace", "unigram_nfkc"));

TEST(SentencePiece, EncodesLikeTheReference) {
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kSentencePiece;
  spec.file = ReadTestFile("text/sentencepiece/mistral_instruct_tokenizer_240323.model.v3");
  const auto tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  ExpectEncodings(*tokenizer, "text/sentencepiece");
  EXPECT_EQ(tokenizer->bos_text(), "<s>");
  EXPECT_TRUE(tokenizer->DropsFirstSpace());
}

class GoldenModel : public testing::TestWithParam<const char*> {};

TEST_P(GoldenModel, TokenizerCases) {
  const std::string folder = std::string("goldens/") + GetParam();
  const auto tokenizer = OpenTestTokenizerJson(folder + "/tokenizer.json");
  ASSERT_NE(tokenizer, nullptr);
  const TestJson goldens = TestJson::parse(ReadTestFile(folder + "/goldens.json"));
  for (const TestJson& row : goldens["tokenizer_cases"]) {
    EXPECT_EQ(Encode(*tokenizer, row["text"], true, true), row["token_ids"].get<Ids>());
  }
  for (const TestJson& row : goldens["chat_cases"]) {
    EXPECT_EQ(Encode(*tokenizer, row["text"], true, false), row["token_ids"].get<Ids>());
  }
}

INSTANTIATE_TEST_SUITE_P(All, GoldenModel,
                         testing::Values("llama2-like", "llama3-like", "mistral-like", "qwen2-like",
                                         "qwen3-like"));

// The same vocabulary as a GGUF file has it.
TokenizerSpec GgufOf(const TestJson& file, TokenizerSpec::Kind kind) {
  TokenizerSpec spec;
  spec.kind = kind;
  for (const auto& [text, id] : file["model"]["vocab"].items()) {
    const auto index = id.get<size_t>();
    if (spec.gguf_tokens.size() <= index) spec.gguf_tokens.resize(index + 1);
    spec.gguf_tokens[index] = text;
  }
  for (const TestJson& added : file["added_tokens"]) {
    const auto index = added["id"].get<size_t>();
    if (spec.gguf_tokens.size() <= index) spec.gguf_tokens.resize(index + 1);
    spec.gguf_tokens[index] = added["content"];
  }
  spec.gguf_types.assign(spec.gguf_tokens.size(), 1);
  for (const TestJson& added : file["added_tokens"]) {
    spec.gguf_types[added["id"].get<size_t>()] = added["special"] ? 3 : 4;
  }
  for (const TestJson& merge : file["model"]["merges"]) {
    spec.gguf_merges.push_back(merge[0].get<std::string>() + " " + merge[1].get<std::string>());
  }
  return spec;
}

TEST(Gguf, ByteLevelVocabularyEncodesLikeItsTokenizerJson) {
  const TestJson file = TestJson::parse(ReadTestFile("goldens/llama3-like/tokenizer.json"));
  TokenizerSpec spec = GgufOf(file, TokenizerSpec::Kind::kGgufBpe);
  spec.gguf_pre = "llama-bpe";
  spec.bos_id = 763;
  spec.add_bos = true;
  const auto tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  const TestJson goldens = TestJson::parse(ReadTestFile("goldens/llama3-like/goldens.json"));
  for (const TestJson& row : goldens["tokenizer_cases"]) {
    EXPECT_EQ(Encode(*tokenizer, row["text"], true, true), row["token_ids"].get<Ids>());
  }
}

TEST(Gguf, SentencepieceVocabularyEncodesLikeItsTokenizerJson) {
  const TestJson file = TestJson::parse(ReadTestFile("goldens/llama2-like/tokenizer.json"));
  TokenizerSpec spec = GgufOf(file, TokenizerSpec::Kind::kGgufSpm);
  for (size_t i = 0; i < spec.gguf_tokens.size(); ++i) {
    const std::string& text = spec.gguf_tokens[i];
    if (text.size() == 6 && text.starts_with("<0x")) spec.gguf_types[i] = 6;
    spec.gguf_scores.push_back(0);
  }
  // A merge's rank is its score; characters have none.
  for (size_t rank = 0; rank < file["model"]["merges"].size(); ++rank) {
    const TestJson& merge = file["model"]["merges"][rank];
    const std::string merged = merge[0].get<std::string>() + merge[1].get<std::string>();
    spec.gguf_scores[file["model"]["vocab"][merged].get<size_t>()] =
        -1.0f - static_cast<float>(rank);
  }
  spec.bos_id = 1;
  const auto tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  const TestJson goldens = TestJson::parse(ReadTestFile("goldens/llama2-like/goldens.json"));
  for (const TestJson& row : goldens["tokenizer_cases"]) {
    EXPECT_EQ(Encode(*tokenizer, row["text"], true, true), row["token_ids"].get<Ids>())
        << row["text"];
  }
}

}  // namespace
}  // namespace tandem::tokenizer
