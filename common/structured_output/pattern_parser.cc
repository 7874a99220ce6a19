#include "common/structured_output/pattern_parser.h"

#include <algorithm>
#include <utility>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::structured_output {
namespace {

constexpr size_t kMaxPatternBytes = 8192;
constexpr int kMaxDepth = 64;

const CodePointSet kDigits = {{'0', '9'}};
const CodePointSet kWord = {{'0', '9'}, {'A', 'Z'}, {'_', '_'}, {'a', 'z'}};
const CodePointSet kSpaces = {
    {9, 13},          {' ', ' '},       {0xa0, 0xa0},     {0x1680, 0x1680}, {0x2000, 0x200a},
    {0x2028, 0x2029}, {0x202f, 0x202f}, {0x205f, 0x205f}, {0x3000, 0x3000}, {0xfeff, 0xfeff}};
const CodePointSet kLineEnds = {{'\n', '\n'}, {'\r', '\r'}, {0x2028, 0x2029}};

class Parser {
 public:
  explicit Parser(std::string_view pattern) : text_(CodePointsOf(pattern)) {}

  absl::StatusOr<PatternNode> Parse() {
    TANDEM_ASSIGN_OR_RETURN(PatternNode node, Alternatives(0));
    if (at_ < text_.size()) {
      return Wrong("an unmatched )");
    }
    return node;
  }

 private:
  absl::Status Wrong(std::string_view what) const {
    return absl::InvalidArgumentError(
        base::StrCat("the regular expression has ", what, " at character ", at_ + 1));
  }
  static absl::Status Unsupported(std::string_view what) {
    return absl::UnimplementedError(
        base::StrCat("the regular expression uses ", what, ", which is not supported"));
  }
  bool Has(char c) const { return at_ < text_.size() && text_[at_] == static_cast<uint32_t>(c); }
  bool Take(char c) {
    if (!Has(c)) {
      return false;
    }
    ++at_;
    return true;
  }

  absl::StatusOr<PatternNode> Alternatives(int depth) {
    if (depth > kMaxDepth) {
      return Unsupported("deeply nested groups");
    }
    PatternNode node;
    node.kind = PatternNode::Kind::kAlternatives;
    do {
      TANDEM_ASSIGN_OR_RETURN(PatternNode sequence, Sequence(depth));
      node.children.push_back(std::move(sequence));
    } while (Take('|'));
    return node;
  }

  absl::StatusOr<PatternNode> Sequence(int depth) {
    PatternNode node;
    while (at_ < text_.size() && !Has('|') && !Has(')')) {
      TANDEM_ASSIGN_OR_RETURN(PatternNode atom, Atom(depth));
      TANDEM_ASSIGN_OR_RETURN(atom, Quantified(std::move(atom)));
      node.children.push_back(std::move(atom));
    }
    return node;
  }

  static PatternNode SetNode(CodePointSet set) {
    PatternNode node;
    node.kind = PatternNode::Kind::kSet;
    node.set = Normalized(std::move(set));
    return node;
  }

  absl::StatusOr<PatternNode> Atom(int depth) {
    const uint32_t c = text_[at_];
    if (c == '^' || c == '$') {
      ++at_;
      PatternNode node;
      node.kind = c == '^' ? PatternNode::Kind::kBegin : PatternNode::Kind::kEnd;
      return node;
    }
    if (c == '*' || c == '+' || c == '?') {
      return Wrong("a repetition of nothing");
    }
    ++at_;
    switch (c) {
      case '(':
        return Group(depth);
      case '[':
        return Class();
      case '.':
        return SetNode(Complement(kLineEnds));
      case '\\':
        return Escape();
      default:
        return SetNode({{c, c}});
    }
  }

  absl::StatusOr<PatternNode> Group(int depth) {
    if (Take('?')) {
      if (Has('=') || Has('!')) {
        return Unsupported("a lookahead (?= or (?!");
      }
      if (Take('<')) {
        if (Has('=') || Has('!')) {
          return Unsupported("a lookbehind (?<= or (?<!");
        }
        while (at_ < text_.size() && !Has('>')) {
          ++at_;
        }
        ++at_;
      } else if (!Take(':')) {
        return Unsupported("an inline flag (?");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(PatternNode node, Alternatives(depth + 1));
    if (!Take(')')) {
      return Wrong("an unclosed (");
    }
    return node;
  }

  absl::StatusOr<PatternNode> Quantified(PatternNode atom) {
    int min = 0;
    std::optional<int> max;
    if (Take('*')) {
    } else if (Take('+')) {
      min = 1;
    } else if (Take('?')) {
      max = 1;
    } else if (Has('{')) {
      const size_t start = at_;
      if (!Counts(&min, &max)) {
        at_ = start;  // a plain brace
        return atom;
      }
      if (min > kMaxRepeat || max.value_or(0) > kMaxRepeat) {
        return Unsupported(base::StrCat("a repetition over ", kMaxRepeat));
      }
      if (max && *max < min) {
        return Wrong("a repetition whose bounds are the wrong way round");
      }
    } else {
      return atom;
    }
    Take('?');  // lazy: the same texts
    if (Has('*') || Has('+')) {
      return Wrong("a repetition of a repetition");
    }
    PatternNode node;
    node.kind = PatternNode::Kind::kRepeat;
    node.min = min;
    node.max = max;
    node.children.push_back(std::move(atom));
    return node;
  }

  // {m}, {m,} or {m,n}.
  bool Counts(int* min, std::optional<int>* max) {
    ++at_;
    if (!Number(min)) {
      return false;
    }
    if (!Take(',')) {
      *max = *min;
    } else if (!Has('}')) {
      int value = 0;
      if (!Number(&value)) {
        return false;
      }
      *max = value;
    }
    return Take('}');
  }

  bool Number(int* value) {
    const size_t start = at_;
    int64_t number = 0;
    while (at_ < text_.size() && text_[at_] >= '0' && text_[at_] <= '9') {
      number = std::min<int64_t>(number * 10 + (text_[at_++] - '0'), kMaxRepeat + 1);
    }
    *value = static_cast<int>(number);
    return at_ > start;
  }

  absl::StatusOr<PatternNode> Escape() {
    if (at_ < text_.size()) {
      const uint32_t c = text_[at_];
      if (c == 'b' || c == 'B') {
        return Unsupported("a word boundary \\b");
      }
      if ((c >= '1' && c <= '9') || c == 'k') {
        return Unsupported("a backreference");
      }
    }
    TANDEM_ASSIGN_OR_RETURN(CodePointSet set, EscapedSet());
    return SetNode(std::move(set));
  }

  // After a backslash; one code point, or a class like \d.
  absl::StatusOr<CodePointSet> EscapedSet() {
    if (at_ >= text_.size()) {
      return Wrong("a \\ at its end");
    }
    const uint32_t c = text_[at_++];
    switch (c) {
      case 'd':
        return kDigits;
      case 'D':
        return Complement(kDigits);
      case 'w':
        return kWord;
      case 'W':
        return Complement(kWord);
      case 's':
        return kSpaces;
      case 'S':
        return Complement(kSpaces);
      case 'p':
      case 'P':
        return Unsupported("a Unicode property \\p");
      default:
        return EscapedPoint(c);
    }
  }

  absl::StatusOr<CodePointSet> EscapedPoint(uint32_t c) {
    static constexpr std::pair<char, uint32_t> kNamed[] = {{'n', '\n'}, {'r', '\r'}, {'t', '\t'},
                                                           {'f', '\f'}, {'v', '\v'}, {'0', 0}};
    for (const auto& [name, value] : kNamed) {
      if (c == static_cast<uint32_t>(name)) {
        return CodePointSet{{value, value}};
      }
    }
    if (c == 'x' || c == 'u') {
      const bool braces = c == 'u' && Take('{');
      uint32_t value = 0;
      const size_t digits = braces ? 6 : c == 'x' ? 2 : 4;
      size_t count = 0;
      for (; count < digits && at_ < text_.size() && HexValue(text_[at_]) >= 0; ++count) {
        value = value * 16 + static_cast<uint32_t>(HexValue(text_[at_++]));
      }
      if ((braces ? count == 0 || !Take('}') : count != digits) || value > kLastCodePoint) {
        return Wrong("a broken escape");
      }
      return CodePointSet{{value, value}};
    }
    const bool letter = (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '1' && c <= '9');
    if (letter) {
      return Unsupported(base::StrCat("\\", std::string(1, static_cast<char>(c))));
    }
    return CodePointSet{{c, c}};
  }

  static int HexValue(uint32_t c) {
    if (c >= '0' && c <= '9') return static_cast<int>(c - '0');
    if (c >= 'a' && c <= 'f') return static_cast<int>(c - 'a') + 10;
    if (c >= 'A' && c <= 'F') return static_cast<int>(c - 'A') + 10;
    return -1;
  }

  absl::StatusOr<PatternNode> Class() {
    const bool negated = Take('^');
    CodePointSet set;
    while (!Has(']')) {
      if (at_ >= text_.size()) {
        return Wrong("an unclosed [");
      }
      TANDEM_ASSIGN_OR_RETURN(CodePointSet first, ClassAtom());
      if (Has('-') && at_ + 1 < text_.size() && text_[at_ + 1] != ']') {
        ++at_;
        TANDEM_ASSIGN_OR_RETURN(const CodePointSet last, ClassAtom());
        if (CountOf(first) != 1 || CountOf(last) != 1 || first[0].first > last[0].first) {
          return Wrong("a wrong range in [ ]");
        }
        first[0].last = last[0].first;
      }
      set.insert(set.end(), first.begin(), first.end());
    }
    ++at_;
    set = Normalized(std::move(set));
    return SetNode(negated ? Complement(set) : set);
  }

  absl::StatusOr<CodePointSet> ClassAtom() {
    const uint32_t c = text_[at_++];
    if (c != '\\') {
      return CodePointSet{{c, c}};
    }
    if (Take('b')) {
      return CodePointSet{{8, 8}};
    }
    return EscapedSet();
  }

  const std::vector<uint32_t> text_;
  size_t at_ = 0;
};

}  // namespace

absl::StatusOr<PatternNode> ParsePattern(std::string_view pattern) {
  if (pattern.size() > kMaxPatternBytes) {
    return absl::ResourceExhaustedError(
        base::StrCat("a regular expression has more than ", kMaxPatternBytes, " bytes"));
  }
  return Parser(pattern).Parse();
}

}  // namespace tandem::structured_output
