#include "common/tokenizer/added_tokens.h"

#include <algorithm>
#include <utility>

#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

const std::pair<uint8_t, int32_t>* FindEdge(const std::vector<std::pair<uint8_t, int32_t>>& edges,
                                            uint8_t byte) {
  const auto it = std::lower_bound(edges.begin(), edges.end(), byte,
                                   [](const auto& edge, uint8_t b) { return edge.first < b; });
  return it != edges.end() && it->first == byte ? &*it : nullptr;
}

size_t SpacesBefore(std::string_view text, size_t begin, size_t limit) {
  while (begin > limit) {
    const CodePoint c = DecodeUtf8Before(text, begin);
    if (!IsWhiteSpace(c.value)) break;
    begin -= static_cast<size_t>(c.bytes);
  }
  return begin;
}

size_t SpacesAfter(std::string_view text, size_t end, size_t limit) {
  while (end < limit) {
    const CodePoint c = DecodeUtf8(text, end);
    if (!IsWhiteSpace(c.value)) break;
    end += static_cast<size_t>(c.bytes);
  }
  return end;
}

}  // namespace

void AddedTokenMatcher::Add(AddedToken token) {
  if (token.content.empty()) {
    return;
  }
  int32_t at = 0;
  for (const char c : token.content) {
    const auto byte = static_cast<uint8_t>(c);
    auto& edges = nodes_[static_cast<size_t>(at)].next;
    if (const auto* edge = FindEdge(edges, byte)) {
      at = edge->second;
      continue;
    }
    const auto child = static_cast<int32_t>(nodes_.size());
    edges.insert(std::upper_bound(edges.begin(), edges.end(), std::pair(byte, int32_t{0})),
                 {byte, child});
    nodes_.emplace_back();
    at = child;
  }
  nodes_[static_cast<size_t>(at)].token = static_cast<int32_t>(tokens_.size());
  tokens_.push_back(std::move(token));
}

int32_t AddedTokenMatcher::LongestAt(std::string_view text, size_t begin, size_t end,
                                     bool only_special) const {
  int32_t best = -1;
  const Node* node = nodes_.data();
  for (size_t i = begin; i < end; ++i) {
    const auto* edge = FindEdge(node->next, static_cast<uint8_t>(text[i]));
    if (edge == nullptr) {
      break;
    }
    node = &nodes_[static_cast<size_t>(edge->second)];
    if (node->token >= 0 && (!only_special || tokens_[static_cast<size_t>(node->token)].special)) {
      best = node->token;
    }
  }
  return best;
}

bool AddedTokenMatcher::Allowed(const AddedToken& token, std::string_view text,
                                size_t begin) const {
  if (!token.single_word) {
    return true;
  }
  const size_t end = begin + token.content.size();
  return (begin == 0 || !IsWordCharacter(DecodeUtf8Before(text, begin).value)) &&
         (end == text.size() || !IsWordCharacter(DecodeUtf8(text, end).value));
}

void AddedTokenMatcher::SplitSection(std::string_view text, TextRange section, Special special,
                                     std::vector<AddedTokenPiece>* pieces) const {
  size_t done = section.begin;
  for (size_t at = section.begin; at < section.end;) {
    const int32_t index = LongestAt(text, at, section.end, special == Special::kOnly);
    if (index < 0) {
      ++at;
      continue;
    }
    const AddedToken& token = tokens_[static_cast<size_t>(index)];
    const size_t begin = at;
    at += token.content.size();
    if ((token.special && special == Special::kSkip) || !Allowed(token, text, begin)) {
      continue;
    }
    const size_t from = token.lstrip ? SpacesBefore(text, begin, done) : std::max(begin, done);
    const size_t to = token.rstrip ? SpacesAfter(text, at, section.end) : at;
    if (from > done) {
      pieces->push_back({done, from, -1});
    }
    pieces->push_back({from, to, token.id});
    done = std::max(done, to);
  }
  if (done < section.end) {
    pieces->push_back({done, section.end, -1});
  }
}

std::vector<AddedTokenPiece> AddedTokenMatcher::Split(std::string_view text, Special special,
                                                      std::span<const TextRange> ranges) const {
  std::vector<AddedTokenPiece> pieces;
  if (tokens_.empty()) {
    if (!text.empty()) pieces.push_back({0, text.size(), -1});
    return pieces;
  }
  if (special != Special::kOnly) {
    SplitSection(text, {0, text.size()}, special, &pieces);
    return pieces;
  }
  std::vector<AddedTokenPiece> found;
  for (const TextRange& range : ranges) {
    SplitSection(text, {std::min(range.begin, text.size()), std::min(range.end, text.size())},
                 special, &found);
  }
  size_t done = 0;
  for (const AddedTokenPiece& piece : found) {
    if (piece.id < 0) continue;
    if (piece.begin > done) pieces.push_back({done, piece.begin, -1});
    pieces.push_back(piece);
    done = piece.end;
  }
  if (done < text.size()) pieces.push_back({done, text.size(), -1});
  return pieces;
}

}  // namespace tandem::tokenizer
