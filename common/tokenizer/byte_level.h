#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace tandem::tokenizer {

// GPT-2's spelling of bytes: each of the 256 has a printable character of its own (' ' is "Ġ").

// The bytes that `spelled` stands for; nothing when a character is not of that alphabet.
std::optional<std::string> BytesOfByteLevel(std::string_view spelled);

// The byte of a sentencepiece byte token "<0x0A>"; nothing for any other text.
std::optional<uint8_t> ByteOfByteToken(std::string_view text);

}  // namespace tandem::tokenizer
