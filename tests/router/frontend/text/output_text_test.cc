#include "router/frontend/text/output_text.h"

#include <random>
#include <string>
#include <vector>

#include "router/frontend/text/incremental_detokenizer.h"
#include "tests/common/tokenizer/text_data.h"

namespace tandem::text {
namespace {

using tokenizer::ReadTestLines;
using tokenizer::TestJson;

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

TEST(OutputText, StopStringsCaseByCase) {
  for (const TestJson& row : ReadTestLines("text/stop_strings.jsonl")) {
    OutputTextOptions options;
    options.stop = row["stop"].get<std::vector<std::string>>();
    options.include_stop = row["include_stop"];
    options.skip_special = row["skip_special"];
    OutputText output(nullptr, options);
    std::vector<std::string> emitted;
    std::string all;
    bool finished = false;
    for (const TestJson& token : row["tokens"]) {
      const auto emission =
          output.AppendBytes(FromHex(token["hex"]), token.value("special", false));
      emitted.push_back(emission.text);
      all += emission.text;
      finished = emission.finished;
      if (finished) break;
    }
    const std::string flush = finished ? "" : output.Flush().text;
    EXPECT_EQ(emitted, row["emitted"].get<std::vector<std::string>>()) << row;
    EXPECT_EQ(flush, row.value("flush", "")) << row;
    EXPECT_EQ(all + flush, row["text"]) << row;
    EXPECT_EQ(output.hit().value_or("none"), row.value("hit", "none")) << row;
    EXPECT_EQ(output.tokens_used(), row["tokens_used"]) << row;
  }
}

// The rule, on the whole text: the stop whose last byte comes first; of equals the longest.
std::string NaiveStop(const std::string& text, const std::vector<std::string>& stops, bool include,
                      std::string* hit) {
  for (size_t end = 1; end <= text.size(); ++end) {
    const std::string* best = nullptr;
    for (const std::string& stop : stops) {
      if (!stop.empty() && text.substr(0, end).ends_with(stop) &&
          (best == nullptr || stop.size() > best->size())) {
        best = &stop;
      }
    }
    if (best != nullptr) {
      *hit = *best;
      return text.substr(0, include ? end : end - best->size());
    }
  }
  return text;
}

TEST(StopMatcher, AgreesWithTheRuleHoweverTheTextFalls) {
  std::mt19937 random(3);
  const auto letters = [&](size_t count) {
    std::string text;
    for (size_t i = 0; i < count; ++i) text.push_back("abc"[random() % 3]);
    return text;
  };
  for (int run = 0; run < 3000; ++run) {
    std::vector<std::string> stops;
    for (size_t i = 0; i < random() % 4; ++i) stops.push_back(letters(random() % 6));
    const std::string text = letters(random() % 40);
    const bool include = random() % 2 == 0;
    std::string hit;
    const std::string expected = NaiveStop(text, stops, include, &hit);
    StopMatcher matcher(stops, include);
    std::string out;
    for (size_t at = 0; at < text.size();) {
      const size_t count = 1 + random() % 5;
      matcher.Append(std::string_view(text).substr(at, count), &out);
      at += count;
      if (!matcher.hit()) {
        // What is held back must be the start of some stop string, and nothing longer may go out.
        const std::string seen = text.substr(0, std::min(at, text.size()));
        const std::string held = seen.substr(out.size());
        EXPECT_EQ(seen.substr(0, out.size()), out);
        size_t longest = 0;
        for (const std::string& stop : stops) {
          for (size_t k = 0; k < stop.size(); ++k) {
            if (seen.ends_with(stop.substr(0, k))) longest = std::max(longest, k);
          }
        }
        EXPECT_EQ(held.size(), longest) << seen;
      }
    }
    if (!matcher.hit()) matcher.Flush(&out);
    EXPECT_EQ(out, expected) << text;
    EXPECT_EQ(matcher.hit().value_or(""), hit);
  }
}

TEST(OutputText, MinTokensShieldsTheFirstTokens) {
  OutputTextOptions options;
  options.stop = {"STOP"};
  options.min_tokens = 2;
  OutputText output(nullptr, options);
  EXPECT_EQ(output.AppendBytes("a STOP", false).text, "a STOP");
  EXPECT_EQ(output.AppendBytes(" STO", false).text, " STO");  // sent: it cannot begin a stop
  EXPECT_FALSE(output.AppendBytes("P", false).finished);
  const auto emission = output.AppendBytes("x STOP y", false);
  EXPECT_TRUE(emission.finished);
  EXPECT_EQ(emission.text, "x ");
  EXPECT_EQ(output.tokens_used(), 4);
  EXPECT_EQ(output.AppendBytes("more", false).text, "");
  EXPECT_EQ(output.tokens_used(), 4);
}

TEST(OutputText, AStopStringMayBeCompletedByTheFlush) {
  OutputTextOptions options;
  options.stop = {"\xef\xbf\xbd"};
  OutputText output(nullptr, options);
  EXPECT_EQ(output.AppendBytes("a\xe2\x82", false).text, "a");
  const auto emission = output.Flush();
  EXPECT_TRUE(emission.finished);
  EXPECT_EQ(emission.text, "");
}

TEST(Utf8Stream, OneReplacementForEachBrokenPart) {
  const struct {
    const char* bytes;
    const char* text;
    const char* flush;
  } cases[] = {{"a\xc3", "a", "\xef\xbf\xbd"},
               {"\xe2\x82\xac", "\xe2\x82\xac", ""},
               {"\xf0\x9f\x98", "", "\xef\xbf\xbd"},
               {"\xe2\x82z", "\xef\xbf\xbdz", ""},
               {"\xff\xfe", "\xef\xbf\xbd\xef\xbf\xbd", ""},
               {"\xed\xa0\x80", "\xef\xbf\xbd\xef\xbf\xbd\xef\xbf\xbd", ""},
               {"\xf4\x90", "\xef\xbf\xbd\xef\xbf\xbd", ""},
               {"\xc3\xc3\xa9", "\xef\xbf\xbd\xc3\xa9", ""}};
  for (const auto& one : cases) {
    Utf8Stream stream;
    std::string out;
    for (const char* at = one.bytes; *at != 0; ++at) stream.Append({at, 1}, &out);
    EXPECT_EQ(out, one.text);
    std::string flush;
    stream.Flush(&flush);
    EXPECT_EQ(flush, one.flush);
  }
}

void ExpectPieces(const tokenizer::Tokenizer& tokenizer, const TestJson& row,
                  const std::string& suffix, DetokenizerOptions options) {
  if (!row.contains("pieces" + suffix)) return;
  IncrementalDetokenizer detokenizer(&tokenizer, options);
  std::vector<std::string> pieces;
  for (const TestJson& id : row["ids"]) pieces.push_back(detokenizer.Append(id));
  EXPECT_EQ(pieces, row["pieces" + suffix].get<std::vector<std::string>>()) << row["ids"];
  const std::string plain = row.value("flush", "");
  EXPECT_EQ(detokenizer.Flush(), row.value("flush" + suffix, plain)) << row["ids"];
}

void ExpectAllPieces(const tokenizer::Tokenizer& tokenizer, const std::string& file) {
  for (const TestJson& row : ReadTestLines(file)) {
    ExpectPieces(tokenizer, row, "", {false, false});
    ExpectPieces(tokenizer, row, "_skip_special", {true, false});
    ExpectPieces(tokenizer, row, "_continuation", {false, true});
  }
}

TEST(IncrementalDetokenizer, PiecesOfTokenizerJson) {
  for (const char* name : {"bl_gpt2", "bl_qwen2_nfc", "spm_bpe_legacy", "spm_bpe_metaspace"}) {
    const std::string folder = std::string("text/tokenizer_json/") + name;
    const auto tokenizer = tokenizer::OpenTestTokenizerJson(folder + "/tokenizer.json");
    ASSERT_NE(tokenizer, nullptr);
    ExpectAllPieces(*tokenizer, folder + "/decode.jsonl");
  }
}

TEST(IncrementalDetokenizer, PiecesOfSentencepiece) {
  tokenizer::TokenizerSpec spec;
  spec.kind = tokenizer::TokenizerSpec::Kind::kSentencePiece;
  spec.file =
      tokenizer::ReadTestFile("text/sentencepiece/mistral_instruct_tokenizer_240323.model.v3");
  const auto tokenizer = tokenizer::MakeTokenizer(spec);
  ASSERT_NE(tokenizer, nullptr);
  ExpectAllPieces(*tokenizer, "text/sentencepiece/decode.jsonl");
}

TEST(IncrementalDetokenizer, GoldenAnswersKeepTheirFirstSpace) {
  for (const char* name : {"llama2-like", "llama3-like", "mistral-like", "qwen2-like"}) {
    const std::string folder = std::string("goldens/") + name;
    const auto tokenizer = tokenizer::OpenTestTokenizerJson(folder + "/tokenizer.json");
    ASSERT_NE(tokenizer, nullptr);
    const TestJson goldens = TestJson::parse(tokenizer::ReadTestFile(folder + "/goldens.json"));
    for (const TestJson& row : goldens["cases"]) {
      OutputText output(tokenizer.get(), {});
      std::string text;
      for (const TestJson& id : row["token_ids"]) text += output.AppendToken(id).text;
      EXPECT_EQ(text + output.Flush().text, row["text"]);
    }
  }
}

}  // namespace
}  // namespace tandem::text
