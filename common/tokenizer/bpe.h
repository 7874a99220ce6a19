#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"

namespace tandem::tokenizer {

// std::unordered_map keyed by text that can be asked with a string_view.
struct TextHash {
  using is_transparent = void;
  size_t operator()(std::string_view text) const { return std::hash<std::string_view>()(text); }
};
using TextToId = std::unordered_map<std::string, int32_t, TextHash, std::equal_to<>>;

// The merges of a byte pair encoding, on symbol ids. Immutable once filled.
class MergeTable {
 public:
  void Reserve(size_t count) { merges_.reserve(count); }
  // The pair becomes `merged`; pairs of lower rank go first. A pair that is there already keeps the
  // lower rank.
  void Add(int32_t left, int32_t right, int32_t rank, int32_t merged);
  // Merges neighbours until none can be: lowest rank first, of equal ranks the leftmost.
  // O(n log n).
  void Apply(std::vector<int32_t>* symbols) const;

 private:
  struct Merge {
    int32_t rank = 0;
    int32_t merged = 0;
  };

  const Merge* Find(int32_t left, int32_t right) const;
  void ApplyToShort(std::vector<int32_t>* symbols) const;
  void ApplyToLong(std::vector<int32_t>* symbols) const;

  absl::flat_hash_map<uint64_t, Merge> merges_;  // by left << 32 | right
};

// What cuts a word into tokens.
class WordModel {
 public:
  virtual ~WordModel() = default;
  // Appends the tokens of `word` (valid UTF-8, or any bytes for a byte-level vocabulary).
  virtual void Encode(std::string_view word, std::vector<int32_t>* ids) const = 0;
};

struct BpeOptions {
  bool byte_level = false;            // symbols are bytes, else characters
  bool whole_words = false;           // a word that is a token is not cut (ignore_merges)
  bool fuse_unknown = false;          // a run of unknown characters becomes one token
  std::optional<int32_t> unknown_id;  // else unknown characters vanish
  // Characters that are parts of tokens but no tokens themselves: symbol ids
  // [first_bare_character, first_bare_character + bare_characters.size()). One that no merge took
  // is an unknown character.
  int32_t first_bare_character = 0;
  std::vector<std::string> bare_characters;
};

// Byte pair encoding of one word.
class BpeModel : public WordModel {
 public:
  // `ids`: tokens by text (by bytes for a byte-level vocabulary) that text may become.
  // `byte_ids`: byte-fallback tokens, 256 or none.
  BpeModel(BpeOptions options, TextToId ids, MergeTable merges, std::vector<int32_t> byte_ids);

  void Encode(std::string_view word, std::vector<int32_t>* ids) const override;

 private:
  void AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const;
  void AppendUnknown(std::string_view character, bool* in_unknown, std::vector<int32_t>* ids) const;
  void AppendMerged(const std::vector<int32_t>& symbols, std::vector<int32_t>* ids) const;

  BpeOptions options_;
  TextToId ids_;
  MergeTable merges_;
  std::vector<int32_t> byte_ids_;
  std::vector<int32_t> symbol_of_byte_;  // byte-level: 256, -1 for none
};

}  // namespace tandem::tokenizer
