#include "common/tokenizer/byte_level.h"

#include <array>

#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

constexpr size_t kAlphabetEnd = 0x144;  // 256 + the 68 bytes that are not printable

bool StandsForItself(int byte) {
  return (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte <= 0xAC) ||
         (byte >= 0xAE && byte <= 0xFF);
}

// By code point: the byte, or -1.
std::array<int16_t, kAlphabetEnd> MakeAlphabet() {
  std::array<int16_t, kAlphabetEnd> bytes{};
  bytes.fill(-1);
  size_t next = 256;
  for (int byte = 0; byte < 256; ++byte) {
    const size_t code_point = StandsForItself(byte) ? static_cast<size_t>(byte) : next++;
    bytes[code_point] = static_cast<int16_t>(byte);
  }
  return bytes;
}

}  // namespace

std::optional<std::string> BytesOfByteLevel(std::string_view spelled) {
  static const std::array<int16_t, kAlphabetEnd> alphabet = MakeAlphabet();
  std::string bytes;
  for (size_t at = 0; at < spelled.size();) {
    const CodePoint c = DecodeUtf8(spelled, at);
    if (c.value >= kAlphabetEnd || alphabet[c.value] < 0) {
      return std::nullopt;
    }
    bytes.push_back(static_cast<char>(alphabet[c.value]));
    at += static_cast<size_t>(c.bytes);
  }
  return bytes;
}

std::optional<uint8_t> ByteOfByteToken(std::string_view text) {
  const auto digit = [](char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'A' && c <= 'F') return c - 'A' + 10;
    return -1;
  };
  if (text.size() != 6 || !text.starts_with("<0x") || text[5] != '>') {
    return std::nullopt;
  }
  const int high = digit(text[3]);
  const int low = digit(text[4]);
  if (high < 0 || low < 0) {
    return std::nullopt;
  }
  return static_cast<uint8_t>(high * 16 + low);
}

}  // namespace tandem::tokenizer
