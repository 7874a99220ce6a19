#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

// A regular expression of a tokenizer file (the dialect of Oniguruma or Rust's regex, as far as
// such files use it), compiled for UTF-8 with Unicode properties. Immutable and thread-safe.
class Regex {
 public:
  static absl::StatusOr<std::shared_ptr<const Regex>> Compile(const std::string& pattern);
  ~Regex();
  Regex(const Regex&) = delete;
  Regex& operator=(const Regex&) = delete;

  // Walks the matches of one text from left to right; empty ones are passed over. Not thread-safe;
  // `text` (valid UTF-8) and the Regex outlive it.
  class Matches {
   public:
    Matches(const Regex& regex, std::string_view text);
    ~Matches();
    Matches(const Matches&) = delete;
    Matches& operator=(const Matches&) = delete;

    // The next match; nothing at the end. ResourceExhausted when the expression needs too much
    // backtracking for this text.
    absl::StatusOr<std::optional<TextRange>> Next();

   private:
    struct State;
    std::unique_ptr<State> state_;
  };

 private:
  struct Code;
  explicit Regex(std::unique_ptr<Code> code);
  std::unique_ptr<Code> code_;
};

}  // namespace tandem::tokenizer
