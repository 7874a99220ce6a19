#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "common/structured_output/compiled_grammar.h"
#include "common/structured_output/grammar_text.h"
#include "common/structured_output/json_rules.h"
#include "common/tokenizer/tokenizer.h"
#include "tests/common/structured_output/require_xgrammar.h"

namespace tandem::structured_output {

// A compiler for a small byte-level vocabulary.
class GrammarFixture : public testing::Test {
 protected:
  void SetUp() override {
    tokenizer::TokenizerSpec spec;
    spec.kind = tokenizer::TokenizerSpec::Kind::kTokenizerJson;
    std::ifstream in(std::string(TANDEM_TEST_DATA) + "/goldens/llama3-like/tokenizer.json");
    spec.file = std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
    auto tokenizer = tokenizer::Tokenizer::Create(spec);
    ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
    tokenizer_ = *std::move(tokenizer);
    end_token_ = tokenizer_->eos_id().value_or(tokenizer_->vocab_size() - 1);
    auto compiler =
        GrammarCompiler::Create(*tokenizer_, tokenizer_->vocab_size(), std::span(&end_token_, 1));
    if (absl::IsUnimplemented(compiler.status())) {
      EndWithoutXGrammar(compiler.status());
      return;
    }
    ASSERT_TRUE(compiler.ok()) << compiler.status();
    compiler_ = *std::move(compiler);
  }

  static std::vector<Json> Rows(const std::string& name) {
    std::ifstream in(std::string(TANDEM_TEST_DATA) + "/structured_output/" + name);
    EXPECT_TRUE(in.good()) << name;
    std::vector<Json> rows;
    for (std::string line; std::getline(in, line);) {
      rows.push_back(Json::parse(line));
    }
    return rows;
  }
  static GrammarSpec Spec(GrammarSpec::Kind kind, std::string text) {
    GrammarSpec spec;
    spec.kind = kind;
    spec.text = std::move(text);
    return spec;
  }
  absl::StatusOr<std::unique_ptr<GrammarMatcher>> Matcher(const GrammarSpec& spec) const {
    const absl::StatusOr<std::string> text = GrammarText(spec);
    if (!text.ok()) {
      return text.status();
    }
    const auto grammar = compiler_->Compile(*text);
    return grammar.ok() ? GrammarMatcher::Create(*grammar) : grammar.status();
  }
  static bool Takes(GrammarMatcher& matcher, const std::string& text) {
    matcher.Reset();
    return matcher.AcceptText(text) && matcher.IsComplete();
  }
  // `document` with the spaces that Python's json writes.
  static std::string Spaced(const Json& document) {
    if (document.is_array() || document.is_object()) {
      std::string out(1, document.is_array() ? '[' : '{');
      for (const auto& [key, value] : document.items()) {
        out += out.size() > 1 ? ", " : "";
        out += document.is_object() ? Json(key).dump() + ": " + Spaced(value) : Spaced(value);
      }
      return out + (document.is_array() ? ']' : '}');
    }
    return document.dump();
  }

  std::unique_ptr<tokenizer::Tokenizer> tokenizer_;
  int32_t end_token_ = 0;
  std::unique_ptr<GrammarCompiler> compiler_;
};

}  // namespace tandem::structured_output
