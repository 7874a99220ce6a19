#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/tokenizer/tokenizer.h"

namespace tandem::text {

// Turns a stream of bytes into a stream of whole UTF-8 characters: a character goes out as soon as
// it is complete, U+FFFD for each maximal broken part as soon as it is hopeless (the practice of
// WHATWG and Unicode), an incomplete one is held. Not thread-safe.
class Utf8Stream {
 public:
  // Appends to `out` what is complete after `bytes`.
  void Append(std::string_view bytes, std::string* out);
  // The text ends: U+FFFD if a character is incomplete, else nothing.
  void Flush(std::string* out);

 private:
  std::string held_;  // at most 3 bytes, the start of a valid character
};

// The characters (code points) of whole UTF-8.
int64_t CountCharacters(std::string_view text);

// Knows whether the next token is the first that adds text, and so may lose its space.
class TextStart {
 public:
  explicit TextStart(bool at_start) : at_start_(at_start) {}

  // The bytes that token `id` adds; the view lives as long as `tokenizer`.
  std::string_view BytesOf(const tokenizer::Tokenizer& tokenizer, int32_t id, bool skip_special);

 private:
  bool at_start_;
};

struct DetokenizerOptions {
  bool skip_special = true;  // control tokens add no text
  // The ids follow a prompt, so that a first space is kept. False: they are a text of their own.
  bool continuation = true;
};

// The text that each token adds when it is streamed. The pieces joined do not depend on how they
// are asked for. Not thread-safe; `tokenizer` outlives it.
class IncrementalDetokenizer {
 public:
  IncrementalDetokenizer(const tokenizer::Tokenizer* tokenizer, DetokenizerOptions options);

  std::string Append(int32_t id);
  std::string Flush();

 private:
  const tokenizer::Tokenizer* tokenizer_;
  DetokenizerOptions options_;
  TextStart start_;
  Utf8Stream stream_;
};

}  // namespace tandem::text
