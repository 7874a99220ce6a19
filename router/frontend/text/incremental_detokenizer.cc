#include "router/frontend/text/incremental_detokenizer.h"

#include <algorithm>
#include <cstddef>

namespace tandem::text {
namespace {

constexpr std::string_view kReplacement = "\xEF\xBF\xBD";

// The bytes that may follow a lead byte (Unicode, table 3-7: the second byte's range excludes
// overlong forms, surrogates and values over U+10FFFF). length 0: not a lead byte.
struct Lead {
  int length = 0;
  uint8_t second_min = 0x80;
  uint8_t second_max = 0xBF;
};

Lead LeadOf(uint8_t byte) {
  if (byte < 0x80) return {1};
  if (byte >= 0xC2 && byte <= 0xDF) return {2};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte >= 0xE1 && byte <= 0xEF) return {3};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte >= 0xF1 && byte <= 0xF3) return {4};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0};
}

}  // namespace

void Utf8Stream::Append(std::string_view bytes, std::string* out) {
  for (const char c : bytes) {
    const auto byte = static_cast<uint8_t>(c);
    if (!held_.empty()) {
      const Lead lead = LeadOf(static_cast<uint8_t>(held_[0]));
      const bool second = held_.size() == 1;
      const uint8_t min = second ? lead.second_min : 0x80;
      const uint8_t max = second ? lead.second_max : 0xBF;
      if (byte >= min && byte <= max) {
        held_.push_back(c);
        if (held_.size() == static_cast<size_t>(lead.length)) {
          out->append(held_);
          held_.clear();
        }
        continue;
      }
      out->append(kReplacement);
      held_.clear();
    }
    const Lead lead = LeadOf(byte);
    if (lead.length == 1) {
      out->push_back(c);
    } else if (lead.length == 0) {
      out->append(kReplacement);
    } else {
      held_.push_back(c);
    }
  }
}

void Utf8Stream::Flush(std::string* out) {
  if (!held_.empty()) {
    out->append(kReplacement);
    held_.clear();
  }
}

int64_t CountCharacters(std::string_view text) {
  return std::count_if(text.begin(), text.end(),
                       [](char c) { return (static_cast<unsigned char>(c) & 0xc0) != 0x80; });
}

IncrementalDetokenizer::IncrementalDetokenizer(const tokenizer::Tokenizer* tokenizer,
                                               DetokenizerOptions options)
    : tokenizer_(tokenizer), options_(options), start_(!options.continuation) {}

std::string IncrementalDetokenizer::Append(int32_t id) {
  std::string out;
  stream_.Append(start_.BytesOf(*tokenizer_, id, options_.skip_special), &out);
  return out;
}

std::string IncrementalDetokenizer::Flush() {
  std::string out;
  stream_.Flush(&out);
  return out;
}

std::string_view TextStart::BytesOf(const tokenizer::Tokenizer& tokenizer, int32_t id,
                                    bool skip_special) {
  if (skip_special && tokenizer.IsSpecial(id)) {
    return {};
  }
  std::string_view bytes = tokenizer.TokenBytes(id);
  const bool special = tokenizer.IsSpecial(id);
  if (at_start_ && !bytes.empty() && !(special && tokenizer.StartsAfterControl())) {
    at_start_ = false;
    if (tokenizer.DropsFirstSpace() && !special && bytes.starts_with(' ')) {
      bytes.remove_prefix(1);
    }
  }
  return bytes;
}

}  // namespace tandem::text
