#include "common/tokenizer/bpe.h"

#include <algorithm>
#include <limits>
#include <queue>
#include <tuple>
#include <utility>

#include "common/tokenizer/unicode.h"

namespace tandem::tokenizer {
namespace {

// Up to here a scan per merge is faster than a heap (most words have under ten symbols).
constexpr size_t kShortWord = 32;
constexpr int32_t kNoRank = std::numeric_limits<int32_t>::max();

}  // namespace

void MergeTable::Add(int32_t left, int32_t right, int32_t rank, int32_t merged) {
  const uint64_t key =
      static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
  const auto [it, inserted] = merges_.try_emplace(key, Merge{rank, merged});
  if (!inserted && rank < it->second.rank) {
    it->second = {rank, merged};
  }
}

const MergeTable::Merge* MergeTable::Find(int32_t left, int32_t right) const {
  const auto it = merges_.find(static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 |
                               static_cast<uint32_t>(right));
  return it == merges_.end() ? nullptr : &it->second;
}

void MergeTable::Apply(std::vector<int32_t>* symbols) const {
  if (symbols->size() < 2) {
    return;
  }
  if (symbols->size() <= kShortWord) {
    ApplyToShort(symbols);
  } else {
    ApplyToLong(symbols);
  }
}

void MergeTable::ApplyToShort(std::vector<int32_t>* symbols) const {
  std::vector<int32_t>& s = *symbols;
  Merge found[kShortWord];  // found[i]: the merge of s[i] and s[i + 1]
  const auto look = [&](size_t i) {
    const Merge* merge = Find(s[i], s[i + 1]);
    found[i] = merge != nullptr ? *merge : Merge{kNoRank, 0};
  };
  size_t size = s.size();
  for (size_t i = 0; i + 1 < size; ++i) look(i);
  while (size > 1) {
    size_t best = 0;
    for (size_t i = 1; i + 1 < size; ++i) {
      if (found[i].rank < found[best].rank) best = i;
    }
    if (found[best].rank == kNoRank) {
      break;
    }
    s[best] = found[best].merged;
    --size;
    for (size_t i = best + 1; i < size; ++i) {
      s[i] = s[i + 1];
      found[i] = found[i + 1];
    }
    if (best > 0) look(best - 1);
    if (best + 1 < size) look(best);
  }
  s.resize(size);
}

void MergeTable::ApplyToLong(std::vector<int32_t>* symbols) const {
  std::vector<int32_t>& s = *symbols;
  const auto size = static_cast<int32_t>(s.size());
  struct Link {
    int32_t previous, next;
  };
  std::vector<Link> links(s.size());
  for (int32_t i = 0; i < size; ++i) {
    links[static_cast<size_t>(i)] = {i - 1, i + 1};
  }
  // rank, left position, the two symbols (a stale entry no longer finds them), the merged one
  using Candidate = std::tuple<int32_t, int32_t, int32_t, int32_t, int32_t>;
  std::priority_queue<Candidate, std::vector<Candidate>, std::greater<>> queue;
  const auto consider = [&](int32_t left) {
    if (left < 0) return;
    const int32_t right = links[static_cast<size_t>(left)].next;
    if (right >= size) return;
    const int32_t a = s[static_cast<size_t>(left)];
    const int32_t b = s[static_cast<size_t>(right)];
    if (const Merge* merge = Find(a, b)) {
      queue.emplace(merge->rank, left, a, b, merge->merged);
    }
  };
  constexpr int32_t kGone = -1;
  for (int32_t i = 0; i < size; ++i) consider(i);
  while (!queue.empty()) {
    const auto [rank, left, a, b, merged] = queue.top();
    queue.pop();
    Link& link = links[static_cast<size_t>(left)];
    if (s[static_cast<size_t>(left)] != a || link.next >= size ||
        s[static_cast<size_t>(link.next)] != b) {
      continue;
    }
    s[static_cast<size_t>(left)] = merged;
    s[static_cast<size_t>(link.next)] = kGone;
    link.next = links[static_cast<size_t>(link.next)].next;
    if (link.next < size) links[static_cast<size_t>(link.next)].previous = left;
    consider(link.previous);
    consider(left);
  }
  s.erase(std::remove(s.begin(), s.end(), kGone), s.end());
}

BpeModel::BpeModel(BpeOptions options, TextToId ids, MergeTable merges,
                   std::vector<int32_t> byte_ids)
    : options_(std::move(options)),
      ids_(std::move(ids)),
      merges_(std::move(merges)),
      byte_ids_(std::move(byte_ids)) {
  if (options_.byte_level) {
    for (int byte = 0; byte < 256; ++byte) {
      const auto it = ids_.find(std::string(1, static_cast<char>(byte)));
      symbol_of_byte_.push_back(it == ids_.end() ? -1 : it->second);
    }
  }
}

void BpeModel::AppendSymbols(std::string_view word, std::vector<int32_t>* symbols) const {
  bool in_unknown = false;
  for (size_t at = 0; at < word.size();) {
    const size_t length = options_.byte_level ? 1 : static_cast<size_t>(DecodeUtf8(word, at).bytes);
    const std::string_view character = word.substr(at, length);
    at += length;
    int32_t id = -1;
    if (options_.byte_level) {
      id = symbol_of_byte_[static_cast<uint8_t>(character[0])];
    } else if (const auto it = ids_.find(character); it != ids_.end()) {
      id = it->second;
    }
    if (id >= 0) {
      symbols->push_back(id);
      in_unknown = false;
    } else {
      AppendUnknown(character, &in_unknown, symbols);
    }
  }
}

void BpeModel::AppendUnknown(std::string_view character, bool* in_unknown,
                             std::vector<int32_t>* ids) const {
  if (!byte_ids_.empty()) {
    for (const char byte : character) {
      ids->push_back(byte_ids_[static_cast<uint8_t>(byte)]);
    }
    *in_unknown = false;
  } else if (options_.unknown_id) {
    if (!*in_unknown || !options_.fuse_unknown) {
      ids->push_back(*options_.unknown_id);
    }
    *in_unknown = true;
  }
}

void BpeModel::AppendMerged(const std::vector<int32_t>& symbols, std::vector<int32_t>* ids) const {
  if (options_.bare_characters.empty()) {
    ids->insert(ids->end(), symbols.begin(), symbols.end());
    return;
  }
  bool in_unknown = false;
  for (const int32_t symbol : symbols) {
    const auto bare = static_cast<int64_t>(symbol) - options_.first_bare_character;
    if (bare >= 0) {
      AppendUnknown(options_.bare_characters[static_cast<size_t>(bare)], &in_unknown, ids);
    } else {
      in_unknown = options_.unknown_id == symbol;
      ids->push_back(symbol);
    }
  }
}

void BpeModel::Encode(std::string_view word, std::vector<int32_t>* ids) const {
  if (options_.whole_words) {
    if (const auto it = ids_.find(word); it != ids_.end()) {
      ids->push_back(it->second);
      return;
    }
  }
  std::vector<int32_t> symbols;
  symbols.reserve(word.size());
  AppendSymbols(word, &symbols);
  merges_.Apply(&symbols);
  AppendMerged(symbols, ids);
}

}  // namespace tandem::tokenizer
