#include "router/frontend/chat_template/encode_chat.h"

namespace tandem::chat_template {

absl::StatusOr<std::vector<int32_t>> EncodeChat(const tokenizer::Tokenizer& tokenizer,
                                                const Rendered& rendered) {
  std::vector<tokenizer::TextRange> trusted;
  for (const TextSpan& span : rendered.spans) {
    if (span.trusted) trusted.push_back({span.begin, span.end});
  }
  tokenizer::EncodeOptions options;
  options.special_ranges = trusted;
  return tokenizer.Encode(rendered.text, options);
}

}  // namespace tandem::chat_template
