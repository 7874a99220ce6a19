#include "common/tokenizer/unigram.h"

#include <algorithm>

#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

constexpr double kUnknownPenalty = 10.0;  // below the worst piece, as sentencepiece has it
// Below this sentencepiece starts from zero, so that long texts keep the precision of short ones.
constexpr double kLowestSum = -100'000.0;

}  // namespace

UnigramModel::UnigramModel(const std::vector<Piece>& pieces, int32_t unknown_id,
                           std::vector<int32_t> byte_ids, Precision precision)
    : nodes_(1), precision_(precision), unknown_id_(unknown_id), byte_ids_(std::move(byte_ids)) {
  double min_score = pieces.empty() ? 0 : pieces.front().score;
  for (size_t i = 0; i < pieces.size(); ++i) {
    Insert(pieces[i].text, static_cast<int32_t>(i));
    scores_.push_back(pieces[i].score);
    longest_ = std::max(longest_, pieces[i].text.size());
    min_score = std::min(min_score, pieces[i].score);
  }
  unknown_score_ = min_score - kUnknownPenalty;
}

void UnigramModel::Insert(const std::string& text, int32_t id) {
  if (text.empty()) {
    return;
  }
  int32_t at = 0;
  for (const char c : text) {
    const auto byte = static_cast<uint8_t>(c);
    auto& edges = nodes_[static_cast<size_t>(at)].next;
    const auto it = std::lower_bound(edges.begin(), edges.end(), byte,
                                     [](const auto& edge, uint8_t b) { return edge.first < b; });
    if (it != edges.end() && it->first == byte) {
      at = it->second;
      continue;
    }
    const auto child = static_cast<int32_t>(nodes_.size());
    edges.insert(it, {byte, child});
    nodes_.emplace_back();
    at = child;
  }
  nodes_[static_cast<size_t>(at)].id = id;
}

void UnigramModel::Extend(std::string_view word, size_t begin, std::vector<Best>* best) const {
  const double base = (*best)[begin].score;
  const auto reach = [&](size_t end, double score, int32_t id) {
    Best& target = (*best)[end];
    const double sum = precision_ == Precision::kDouble
                           ? base + score
                           : static_cast<double>(static_cast<float>(base + score));
    if (target.id < 0 || sum > target.score) {
      target = {sum, begin, id};
    }
  };
  const size_t character = static_cast<size_t>(DecodeUtf8(word, begin).bytes);
  bool has_single = false;
  const Node* node = nodes_.data();
  for (size_t at = begin; at < word.size(); ++at) {
    const auto byte = static_cast<uint8_t>(word[at]);
    const auto it = std::lower_bound(node->next.begin(), node->next.end(), byte,
                                     [](const auto& edge, uint8_t b) { return edge.first < b; });
    if (it == node->next.end() || it->first != byte) break;
    node = &nodes_[static_cast<size_t>(it->second)];
    if (node->id >= 0) {
      reach(at + 1, scores_[static_cast<size_t>(node->id)], node->id);
      has_single = has_single || at + 1 - begin == character;
    }
  }
  if (!has_single) {
    reach(begin + character, unknown_score_, unknown_id_);
  }
}

void UnigramModel::Restart(size_t begin, std::vector<Best>* best) const {
  const double offset = (*best)[begin].score;
  const size_t end = std::min(best->size(), begin + longest_ + 1);
  for (size_t at = begin; at < end; ++at) {
    Best& reached = (*best)[at];
    reached.score = static_cast<double>(static_cast<float>(reached.score - offset));
  }
}

void UnigramModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  std::vector<Best> best(word.size() + 1);
  for (size_t at = 0; at < word.size(); at += static_cast<size_t>(DecodeUtf8(word, at).bytes)) {
    if (precision_ == Precision::kSingle && best[at].score < kLowestSum) {
      Restart(at, &best);
    }
    Extend(word, at, &best);
  }
  std::vector<int32_t> reversed;
  for (size_t end = word.size(); end > 0; end = best[end].begin) {
    const bool unknown = best[end].id == unknown_id_;
    if (unknown && !byte_ids_.empty()) {
      for (size_t i = end; i > best[end].begin; --i) {
        reversed.push_back(byte_ids_[static_cast<uint8_t>(word[i - 1])]);
      }
    } else if (!unknown || reversed.empty() || reversed.back() != unknown_id_) {
      reversed.push_back(best[end].id);
    }
  }
  ids->insert(ids->end(), reversed.rbegin(), reversed.rend());
}

}  // namespace tandem::tokenizer
