#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::structured_output {

// A grammar made ready for one vocabulary. Immutable and thread-safe.
class CompiledGrammar;

// Turns grammars into masks for one vocabulary, by XGrammar. Thread-safe.
class GrammarCompiler {
 public:
  // `vocab_size` is the model's, at least the tokenizer's; `eos_token_ids` may follow only a
  // complete text. Unimplemented where XGrammar's libraries are not there; InvalidArgument without
  // an end token.
  static absl::StatusOr<std::unique_ptr<GrammarCompiler>> Create(
      const tokenizer::Tokenizer& tokenizer, int32_t vocab_size,
      std::span<const int32_t> eos_token_ids);
  ~GrammarCompiler();

  // `ebnf` in XGrammar's notation, start rule `root`. InvalidArgument says what is wrong with it.
  // Takes time that grows with the number of states times the vocabulary.
  absl::StatusOr<std::shared_ptr<const CompiledGrammar>> Compile(const std::string& ebnf) const;

 private:
  GrammarCompiler();
  struct State;
  std::unique_ptr<State> state_;
};

// Bytes that a compiled grammar keeps, for cache limits.
size_t CompiledBytes(const CompiledGrammar& grammar);

// Follows one text through a grammar. One thread at a time.
class GrammarMatcher {
 public:
  static absl::StatusOr<std::unique_ptr<GrammarMatcher>> Create(
      std::shared_ptr<const CompiledGrammar> grammar);
  ~GrammarMatcher();

  // False when the token may not come next; the state is then unchanged.
  bool Accept(int32_t token);
  bool AcceptText(std::string_view text);
  // Whether what came so far is a whole text of the grammar.
  bool IsComplete() const;
  // Bit i % 32 of word i / 32 says whether token i may come next; `mask` has (vocab + 31) / 32
  // words. False when the library failed.
  bool FillMask(std::span<uint32_t> mask) const;
  // Back to the beginning.
  void Reset();

 private:
  GrammarMatcher();
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace tandem::structured_output
