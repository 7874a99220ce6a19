#include "router/frontend/text/output_text.h"

namespace tandem::text {

OutputText::OutputText(const tokenizer::Tokenizer* tokenizer, const OutputTextOptions& options)
    : tokenizer_(tokenizer),
      skip_special_(options.skip_special),
      min_tokens_(options.min_tokens),
      start_(!options.continuation),
      matcher_(options.stop, options.include_stop) {}

OutputText::Emission OutputText::AppendToken(int32_t id) {
  if (hit()) {
    return {"", true};
  }
  ++tokens_used_;
  return Send(start_.BytesOf(*tokenizer_, id, skip_special_));
}

OutputText::Emission OutputText::AppendBytes(std::string_view bytes, bool special) {
  if (hit()) {
    return {"", true};
  }
  ++tokens_used_;
  return Send(special && skip_special_ ? std::string_view() : bytes);
}

OutputText::Emission OutputText::Send(std::string_view bytes) {
  std::string text;
  stream_.Append(bytes, &text);
  characters_ += CountCharacters(text);
  Emission emission;
  if (tokens_used_ <= min_tokens_) {
    matcher_.AppendUnchecked(text, &emission.text);
  } else {
    matcher_.Append(text, &emission.text);
  }
  emission.finished = hit().has_value();
  return emission;
}

OutputText::Emission OutputText::Flush() {
  std::string text;
  stream_.Flush(&text);
  Emission emission;
  matcher_.Append(text, &emission.text);
  emission.finished = hit().has_value();
  matcher_.Flush(&emission.text);
  return emission;
}

}  // namespace tandem::text
