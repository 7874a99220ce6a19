#pragma once

#include <fstream>
#include <iterator>
#include <map>
#include <string>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"

namespace tandem::tokenizer {

using TestJson = nlohmann::json;

inline std::string ReadTestFile(const std::string& name) {
  std::ifstream in(std::string(TANDEM_TEST_DATA) + "/" + name, std::ios::binary);
  EXPECT_TRUE(in.good()) << name;
  return std::string(std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>());
}

inline std::vector<TestJson> ReadTestLines(const std::string& name) {
  std::ifstream in(std::string(TANDEM_TEST_DATA) + "/" + name);
  EXPECT_TRUE(in.good()) << name;
  std::vector<TestJson> rows;
  for (std::string line; std::getline(in, line);) rows.push_back(TestJson::parse(line));
  return rows;
}

inline std::unique_ptr<Tokenizer> MakeTokenizer(const TokenizerSpec& spec) {
  auto tokenizer = Tokenizer::Create(spec);
  EXPECT_TRUE(tokenizer.ok()) << tokenizer.status();
  return tokenizer.ok() ? *std::move(tokenizer) : nullptr;
}

inline std::unique_ptr<Tokenizer> OpenTestTokenizerJson(const std::string& name) {
  TokenizerSpec spec;
  spec.kind = TokenizerSpec::Kind::kTokenizerJson;
  spec.file = ReadTestFile(name);
  return MakeTokenizer(spec);
}

}  // namespace tandem::tokenizer
