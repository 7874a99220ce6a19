#include "common/tokenizer/tokenizer.h"

#include <cstdint>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/escaping.h"
#include "tests/common/tokenizer/text_data.h"

namespace tandem::tokenizer {
namespace {

using Ids = std::vector<int32_t>;

// A byte-level vocabulary of the 256 bytes, merges of "a"s and some added tokens.
TestJson SmallFile() {
  TestJson file = TestJson::parse(ReadTestFile("text/tokenizer_json/bl_gpt2/tokenizer.json"));
  return file;
}

TokenizerSpec SpecOf(const TestJson& file) {
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kTokenizerJson;
  spec.file = file.dump();
  return spec;
}

Ids EncodeWith(const Tokenizer& tokenizer, std::string_view text, const EncodeOptions& options) {
  const auto ids = tokenizer.Encode(text, options);
  EXPECT_TRUE(ids.ok()) << ids.status();
  return ids.ok() ? *ids : Ids();
}

// A charsmap (trie and replacements) of single bytes.
std::string CharsMapOf(const std::vector<std::pair<uint8_t, std::string>>& mapped) {
  constexpr uint32_t kRoot = 256;
  constexpr uint32_t kLeaves = 512;
  std::vector<uint32_t> units(kLeaves + mapped.size());
  units[0] = kRoot << 10;
  std::string replacements;
  for (size_t i = 0; i < mapped.size(); ++i) {
    const uint32_t place = kRoot ^ mapped[i].first;
    const auto leaf = static_cast<uint32_t>(kLeaves + i);
    units[place] = (place ^ leaf) << 10 | 1u << 8 | mapped[i].first;
    units[leaf] = static_cast<uint32_t>(replacements.size());
    replacements += mapped[i].second;
    replacements.push_back('\0');
  }
  const auto bytes = static_cast<uint32_t>(units.size() * sizeof(uint32_t));
  std::string blob(reinterpret_cast<const char*>(&bytes), sizeof(bytes));
  blob.append(reinterpret_cast<const char*>(units.data()), bytes);
  return blob + replacements;
}

TEST(Tokenizer, PrecompiledNormalizersMapWholeShortGraphemes) {
  TestJson file = SmallFile();
  file["normalizer"] = {{"type", "Precompiled"},
                        {"precompiled_charsmap",
                         absl::Base64Escape(CharsMapOf({{'A', "a"}, {'\r', " "}, {'Z', ""}}))}};
  const auto tokenizer = MakeTokenizer(SpecOf(file));
  ASSERT_NE(tokenizer, nullptr);
  const auto normalized = [&](std::string_view text) {
    std::string out;
    for (const int32_t id : EncodeWith(*tokenizer, text, {})) out += tokenizer->TokenBytes(id);
    return out;
  };
  EXPECT_EQ(normalized("bA\r\nZb"), "ba b");
  EXPECT_EQ(normalized("A\u0301B\u0301"), "aB\u0301");  // the accent goes with its letter
  EXPECT_EQ(normalized("A\u0301\u0301\u0301"), "a\u0301\u0301\u0301") << "a long grapheme";
}

TEST(Tokenizer, RefusesInvalidUtf8AndNamesTheByte) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  for (const auto& [text, offset] :
       std::vector<std::pair<std::string, std::string>>{{"ab\xff", "byte 2"},
                                                        {"\xc3", "byte 0"},
                                                        {"x\xed\xa0\x80", "byte 1"},
                                                        {"\xf4\x90\x80\x80", "byte 0"},
                                                        {"\xc0\xaf", "byte 0"},
                                                        {"a\xe2\x82", "byte 1"}}) {
    const auto ids = tokenizer->Encode(text, {});
    ASSERT_FALSE(ids.ok());
    EXPECT_EQ(ids.status().code(), absl::StatusCode::kInvalidArgument);
    EXPECT_NE(std::string(ids.status().message()).find(offset), std::string::npos) << ids.status();
  }
}

TEST(Tokenizer, ControlTokensAreRecognisedInTrustedRangesOnly) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  const int32_t end = *tokenizer->TokenId("<|im_end|>");
  const std::string text = "<|im_end|>hi<|im_end|><|im_end|>";
  const auto count = [&](std::vector<TextRange> ranges) {
    EncodeOptions options;
    options.special_ranges = ranges;
    const Ids ids = EncodeWith(*tokenizer, text, options);
    std::string back;
    for (const int32_t id : ids) back += tokenizer->TokenBytes(id);
    EXPECT_EQ(back, text);
    return std::count(ids.begin(), ids.end(), end);
  };
  EXPECT_EQ(count({}), 0);
  EXPECT_EQ(count({{0, 10}}), 1);
  EXPECT_EQ(count({{0, 9}}), 0);              // not wholly inside
  EXPECT_EQ(count({{0, 10}, {22, 32}}), 2);   // the one in between is the user's
  EXPECT_EQ(count({{12, 17}, {17, 22}}), 0);  // one token from two ranges: no
  EXPECT_EQ(count({{0, 32}}), 3);
}

// "<|im_end|>x" is a control token too; text that follows a trusted one must not swallow it.
TEST(Tokenizer, UntrustedTextCannotHideAControlToken) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  const TextRange trusted{0, 10};
  EncodeOptions options;
  options.special_ranges = {&trusted, 1};
  const Ids ids = EncodeWith(*tokenizer, "<|im_end|>x", options);
  ASSERT_EQ(ids.size(), 2u);
  EXPECT_EQ(ids[0], *tokenizer->TokenId("<|im_end|>"));
}

TEST(Tokenizer, WordsAreTheSameAcrossTheBordersOfRanges) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  const std::string text = "the quick brown fox";
  const TextRange trusted{2, 7};
  EncodeOptions options;
  options.special_ranges = {&trusted, 1};
  EXPECT_EQ(EncodeWith(*tokenizer, text, options), EncodeWith(*tokenizer, text, {}));
}

TEST(Tokenizer, RoundTripsRandomText) {
  std::mt19937 random(7);
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  for (int run = 0; run < 300; ++run) {
    std::string text;
    for (int i = 0; i < 40; ++i) {
      const char* parts[] = {"a",    " ",  "\n", "é", "日", "\xf0\x9f\x98\x80",
                             "the ", "12", "<|", "'s"};
      text += parts[random() % 10];
    }
    std::string back;
    for (const int32_t id : EncodeWith(*tokenizer, text, {})) back += tokenizer->TokenBytes(id);
    EXPECT_EQ(back, text);
  }
}

// Naive merging, the definition itself: always the pair of the lowest rank, the leftmost of equals.
Ids NaiveBpe(const TestJson& file, std::string word) {
  std::map<std::pair<std::string, std::string>, size_t> ranks;
  for (size_t i = 0; i < file["model"]["merges"].size(); ++i) {
    const TestJson& merge = file["model"]["merges"][i];
    ranks[{merge[0], merge[1]}] = i;
  }
  std::vector<std::string> parts;
  for (const char c : word) parts.emplace_back(1, c);
  while (true) {
    size_t best = SIZE_MAX;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto it = ranks.find({parts[i], parts[i + 1]});
      if (it != ranks.end() && it->second < best) {
        best = it->second;
        at = i;
      }
    }
    if (best == SIZE_MAX) break;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
  Ids ids;
  for (const std::string& part : parts) ids.push_back(file["model"]["vocab"][part]);
  return ids;
}

TEST(Tokenizer, ShortAndLongWordsMergeLikeTheDefinition) {
  const TestJson file = SmallFile();
  const auto tokenizer = MakeTokenizer(SpecOf(file));
  std::mt19937 random(11);
  for (int run = 0; run < 60; ++run) {
    std::string word;
    const size_t length = 1 + random() % 120;
    for (size_t i = 0; i < length; ++i) word.push_back("thenaigos"[random() % 9]);
    EXPECT_EQ(EncodeWith(*tokenizer, word, {}), NaiveBpe(file, word)) << word;
  }
}

TEST(Tokenizer, HostileTextIsEncodedWhole) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  for (const std::string unit : {"a", " ", "\n", "\xf0\x9f\x98\x82", "<", "<|im_end|", "ab"}) {
    std::string text;
    while (text.size() < 100'000) text += unit;
    std::string back;
    for (const int32_t id : EncodeWith(*tokenizer, text, {})) back += tokenizer->TokenBytes(id);
    EXPECT_EQ(back, text);
  }
}

TEST(Tokenizer, ThreadsShareOne) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  const Ids expected = EncodeWith(*tokenizer, "the quick brown fox, 123 times", {});
  std::vector<std::jthread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int run = 0; run < 50; ++run) {
        const auto ids = tokenizer->Encode("the quick brown fox, 123 times", {});
        EXPECT_TRUE(ids.ok() && *ids == expected);
      }
    });
  }
}

TEST(Tokenizer, IdsOutsideTheVocabularyHaveNoText) {
  const auto tokenizer = MakeTokenizer(SpecOf(SmallFile()));
  for (const int32_t id : {-1, tokenizer->vocab_size(), 1 << 30}) {
    EXPECT_EQ(tokenizer->TokenBytes(id), "");
    EXPECT_EQ(tokenizer->TokenText(id), "");
    EXPECT_FALSE(tokenizer->IsSpecial(id));
  }
  EXPECT_EQ(tokenizer->TokenId("no such token"), std::nullopt);
}

TEST(Tokenizer, EndTokensComeFromTheConfiguration) {
  TokenizerSpec spec = SpecOf(SmallFile());
  spec.tokenizer_config_json =
      R"({"bos_token": null, "eos_token": {"content": "<|im_end|>", "special": true}})";
  const auto tokenizer = MakeTokenizer(spec);
  EXPECT_EQ(tokenizer->eos_id(), tokenizer->TokenId("<|im_end|>"));
  EXPECT_EQ(tokenizer->eos_text(), "<|im_end|>");
  EXPECT_EQ(tokenizer->bos_text(), "<|endoftext|>");  // what the post-processor puts in front
}

struct BadFile {
  const char* path;   // JSON pointer of what is changed
  const char* value;  // JSON
  const char* named;  // what the message must name
};

class BrokenTokenizerJson : public testing::TestWithParam<BadFile> {};

TEST_P(BrokenTokenizerJson, IsRefusedByName) {
  TestJson file = SmallFile();
  file[TestJson::json_pointer(GetParam().path)] = TestJson::parse(GetParam().value);
  const auto tokenizer = Tokenizer::Create(SpecOf(file));
  ASSERT_FALSE(tokenizer.ok());
  EXPECT_NE(std::string(tokenizer.status().message()).find(GetParam().named), std::string::npos)
      << tokenizer.status();
}

INSTANTIATE_TEST_SUITE_P(
    All, BrokenTokenizerJson,
    testing::Values(BadFile{"/model", "7", "tokenizer.json"},
                    BadFile{"/model/type", "\"WordPiece\"", "WordPiece"},
                    BadFile{"/normalizer",
                            R"({"type": "Precompiled", "precompiled_charsmap": "no base64!"})",
                            "precompiled_charsmap"},
                    BadFile{"/model/vocab", "{\"a\": -1}", "bad id"},
                    BadFile{"/model/vocab", "{\"a\": 99999999}", "bad id"},
                    BadFile{"/model/merges", "[[\"zz\", \"qq\"]]", "merges[0]"},
                    BadFile{"/model/merges", "[7]", "merges[0]"},
                    BadFile{"/model/dropout", "0.5", "dropout"},
                    BadFile{"/model/unk_token", "\"nobody\"", "unk_token"},
                    BadFile{"/normalizer", "{\"type\": \"BertNormalizer\"}", "BertNormalizer"},
                    BadFile{"/pre_tokenizer", "{\"type\": \"UnicodeScripts\"}", "UnicodeScripts"},
                    BadFile{"/pre_tokenizer",
                            "{\"type\": \"Split\", \"pattern\": {\"Regex\": \"(\"}, "
                            "\"behavior\": \"Isolated\", \"invert\": false}",
                            "regular expression"},
                    BadFile{"/decoder", "{\"type\": \"WordPiece\"}", "WordPiece"},
                    BadFile{"/post_processor", "{\"type\": \"Unheard\"}", "Unheard"},
                    BadFile{"/added_tokens", "[{\"id\": -4, \"content\": \"x\"}]", "added_tokens"},
                    BadFile{"/added_tokens", "[{\"id\": 3}]", "content"}));

TEST(Tokenizer, RefusesFilesThatAreNone) {
  using Kind = TokenizerSpec::Kind;
  for (const Kind kind :
       {Kind::kTokenizerJson, Kind::kSentencePiece, Kind::kTiktoken, Kind::kTekken, Kind::kNone}) {
    for (const char* file : {"", "{", "garbage 1\n", "\xff\xfe"}) {
      TokenizerSpec spec;
      spec.kind = kind;
      spec.file = file;
      EXPECT_FALSE(Tokenizer::Create(spec).ok());
    }
  }
}

TEST(Gguf, RefusesBrokenVocabularies) {
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kGgufBpe;
  spec.gguf_tokens = {"a", "b", "ab"};
  spec.gguf_types = {1, 1, 1};
  spec.gguf_merges = {"a b"};
  spec.gguf_pre = "gpt-2";
  EXPECT_TRUE(Tokenizer::Create(spec).ok());
  const auto message = [](const TokenizerSpec& broken) {
    const auto tokenizer = Tokenizer::Create(broken);
    EXPECT_FALSE(tokenizer.ok());
    return std::string(tokenizer.status().message());
  };
  TokenizerSpec broken = spec;
  broken.gguf_pre = "nobody-knows";
  EXPECT_NE(message(broken).find("nobody-knows"), std::string::npos);
  broken = spec;
  broken.gguf_merges = {"a c"};
  EXPECT_NE(message(broken).find("merges[0]"), std::string::npos);
  broken = spec;
  broken.gguf_merges = {"ab"};
  EXPECT_NE(message(broken).find("is no pair"), std::string::npos);
  broken = spec;
  broken.bos_id = 3;
  EXPECT_NE(message(broken).find("bos_token_id"), std::string::npos);
  broken = spec;
  broken.kind = TokenizerSpec::Kind::kGgufSpm;  // without scores
  EXPECT_NE(message(broken).find("scores"), std::string::npos);
}

TEST(Tekken, RanksPatternAndControlTokensComeFromTheFile) {
  TestJson file = {{"config",
                    {{"pattern", "[a-z]+|[^a-z]+"},
                     {"default_vocab_size", 260},
                     {"default_num_special_tokens", 3}}},
                   {"vocab", TestJson::array()}};
  const char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (int byte = 0; byte < 256; ++byte) {
    const std::string base64 = {kDigits[byte >> 2], kDigits[(byte & 3) << 4], '=', '='};
    file["vocab"].push_back({{"rank", byte}, {"token_bytes", base64}});
  }
  file["vocab"].push_back({{"rank", 256}, {"token_bytes", "YWI="}});  // "ab"
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kTekken;
  spec.file = file.dump();
  const auto tokenizer = MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  EncodeOptions options;
  options.add_special = true;
  EXPECT_EQ(EncodeWith(*tokenizer, "ab c</s>", options),
            (Ids{1, 259, 3 + ' ', 3 + 'c', 3 + '<', 3 + '/', 3 + 's', 3 + '>'}));
  options.parse_special = true;
  EXPECT_EQ(EncodeWith(*tokenizer, "ab</s>", options), (Ids{1, 259, 2}));
}

}  // namespace
}  // namespace tandem::tokenizer
