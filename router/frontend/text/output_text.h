#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/tokenizer/tokenizer.h"
#include "router/frontend/text/incremental_detokenizer.h"
#include "router/frontend/text/stop_matcher.h"

namespace tandem::text {

struct OutputTextOptions {
  std::vector<std::string> stop;
  bool include_stop = false;
  bool skip_special = true;
  bool continuation = true;
  // The text of the first `min_tokens` tokens is not searched for stop strings.
  int64_t min_tokens = 0;
};

// One output sequence's way from token ids to the text that is sent: detokenizing, then stop
// strings. Not thread-safe; `tokenizer` outlives it and may be null when only AppendBytes is used.
class OutputText {
 public:
  OutputText(const tokenizer::Tokenizer* tokenizer, const OutputTextOptions& options);

  struct Emission {
    std::string text;       // to send now; may be empty
    bool finished = false;  // a stop string hit: send this text, then end with reason "stop"
  };

  // The next token. After `finished` further tokens add nothing and are not counted.
  Emission AppendToken(int32_t id);
  // The same for a token given by its bytes.
  Emission AppendBytes(std::string_view bytes, bool special);
  // The sequence ended otherwise (length, end token): what was held back. It may complete a stop
  // string (an incomplete character becomes U+FFFD), hence an emission.
  Emission Flush();

  // The stop string that hit.
  const std::optional<std::string>& hit() const { return matcher_.hit(); }
  // Tokens up to and with the one that completed a stop string, or all so far.
  int64_t tokens_used() const { return tokens_used_; }
  // Characters that the tokens so far completed, whether sent, held back or cut by a stop string.
  int64_t characters() const { return characters_; }

 private:
  Emission Send(std::string_view bytes);

  const tokenizer::Tokenizer* tokenizer_;
  bool skip_special_;
  int64_t min_tokens_;
  int64_t tokens_used_ = 0;
  int64_t characters_ = 0;
  TextStart start_;
  Utf8Stream stream_;
  StopMatcher matcher_;
};

}  // namespace tandem::text
