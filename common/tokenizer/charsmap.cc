#include "common/tokenizer/charsmap.h"

#include <cstring>

namespace tandem::tokenizer {
namespace {

// A unit of the trie (darts-clone's format).
bool HasLeaf(uint32_t unit) { return (unit >> 8 & 1u) != 0; }
uint32_t ValueOf(uint32_t unit) { return unit & 0x7fffffffu; }
uint32_t LabelOf(uint32_t unit) { return unit & 0x800000ffu; }
uint32_t OffsetOf(uint32_t unit) { return (unit >> 10) << ((unit & 0x200u) >> 6); }

}  // namespace

absl::StatusOr<CharsMap> CharsMap::Parse(std::string_view blob) {
  CharsMap map;
  if (blob.empty()) {
    return map;
  }
  uint32_t trie_bytes = 0;
  if (blob.size() < sizeof(trie_bytes)) {
    return absl::InvalidArgumentError("precompiled_charsmap is too short");
  }
  std::memcpy(&trie_bytes, blob.data(), sizeof(trie_bytes));
  blob.remove_prefix(sizeof(trie_bytes));
  if (trie_bytes > blob.size() || trie_bytes % sizeof(uint32_t) != 0 || trie_bytes == 0) {
    return absl::InvalidArgumentError("precompiled_charsmap has a wrong size");
  }
  map.units_.resize(trie_bytes / sizeof(uint32_t));
  std::memcpy(map.units_.data(), blob.data(), trie_bytes);
  map.replacements_ = std::string(blob.substr(trie_bytes));
  map.replacements_.push_back('\0');  // the last text ends
  return map;
}

CharsMap::Match CharsMap::Longest(std::string_view text) const { return Find(text, true); }
CharsMap::Match CharsMap::Shortest(std::string_view text) const { return Find(text, false); }

CharsMap::Match CharsMap::Find(std::string_view text, bool longest) const {
  Match match;
  if (units_.empty()) {
    return match;
  }
  size_t place = OffsetOf(units_[0]);
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<uint8_t>(text[i]);
    place ^= byte;
    if (place >= units_.size() || LabelOf(units_[place]) != byte) {
      break;
    }
    const uint32_t unit = units_[place];
    place ^= OffsetOf(unit);
    if (!HasLeaf(unit) || place >= units_.size()) {
      continue;
    }
    const size_t begin = ValueOf(units_[place]);
    if (begin < replacements_.size()) {
      match.bytes = i + 1;
      match.replacement = replacements_.c_str() + begin;
      if (!longest) {
        break;
      }
    }
  }
  return match;
}

}  // namespace tandem::tokenizer
