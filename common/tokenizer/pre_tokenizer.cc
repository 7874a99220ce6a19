#include "common/tokenizer/pre_tokenizer.h"

#include <optional>
#include <utility>

#include "common/base/status_macros.h"
#include "common/tokenizer/normalizer.h"

namespace tandem::tokenizer {
namespace {

struct Part {
  TextRange range;
  bool match = false;
};

// Matches and what lies between, in order.
absl::StatusOr<std::vector<Part>> FindParts(const PreTokenizerStep& step, std::string_view text) {
  std::vector<Part> parts;
  size_t done = 0;
  const auto add = [&](TextRange match) {
    if (match.begin > done) parts.push_back({{done, match.begin}, step.invert});
    parts.push_back({match, !step.invert});
    done = match.end;
  };
  if (step.kind == PreTokenizerStep::Kind::kSplitRegex) {
    Regex::Matches matches(*step.regex, text);
    while (true) {
      TANDEM_ASSIGN_OR_RETURN(const std::optional<TextRange> match, matches.Next());
      if (!match) break;
      add(*match);
    }
  } else {
    for (size_t at = text.find(step.literal); at != std::string_view::npos;
         at = text.find(step.literal, done)) {
      add({at, at + step.literal.size()});
    }
  }
  if (done < text.size()) parts.push_back({{done, text.size()}, step.invert});
  return parts;
}

std::vector<TextRange> Join(const std::vector<Part>& parts, SplitBehavior behavior) {
  std::vector<TextRange> out;
  bool previous_match = false;
  for (size_t i = 0; i < parts.size(); ++i) {
    const auto& [range, match] = parts[i];
    const bool after_other = i > 0 && !out.empty() && previous_match != match;
    switch (behavior) {
      case SplitBehavior::kIsolated:
        out.push_back(range);
        break;
      case SplitBehavior::kRemoved:
        if (!match) out.push_back(range);
        break;
      case SplitBehavior::kContiguous:
        if (i > 0 && previous_match == match) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        break;
      case SplitBehavior::kMergedWithPrevious:
        if (match && after_other) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        break;
      case SplitBehavior::kMergedWithNext:
        if (!match && after_other) {
          out.back().end = range.end;
        } else {
          out.push_back(range);
        }
        break;
    }
    previous_match = match;
  }
  return out;
}

absl::Status Split(const PreTokenizerStep& step, const Word& word, std::vector<Word>* out) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<Part> parts, FindParts(step, word.text));
  for (const TextRange& range : Join(parts, step.behavior)) {
    out->push_back({word.text.substr(range.begin, range.end - range.begin),
                    word.starts_text && range.begin == 0});
  }
  return absl::OkStatus();
}

void CutBeforeRuns(const std::string& literal, const Word& word, std::vector<Word>* out) {
  size_t begin = 0;
  size_t run_end = 0;  // where the last run of literals stopped
  for (size_t at = word.text.find(literal); at != std::string_view::npos;
       at = word.text.find(literal, at + literal.size())) {
    if (at != run_end && at > begin) {
      out->push_back({word.text.substr(begin, at - begin), word.starts_text && begin == 0});
      begin = at;
    }
    run_end = at + literal.size();
  }
  if (begin < word.text.size()) {
    out->push_back({word.text.substr(begin), word.starts_text && begin == 0});
  }
}

absl::Status Metaspace(const PreTokenizerStep& step, const Word& word,
                       std::deque<std::string>* arena, std::vector<Word>* out) {
  std::string text = ReplaceAll(word.text, " ", step.literal);
  const bool prepend = step.prepend == PreTokenizerStep::Prepend::kAlways ||
                       (step.prepend == PreTokenizerStep::Prepend::kFirst && word.starts_text);
  if (prepend && !text.starts_with(step.literal)) {
    text.insert(0, step.literal);
  }
  arena->push_back(std::move(text));
  const Word whole{arena->back(), word.starts_text};
  if (!step.split) {
    out->push_back(whole);
    return absl::OkStatus();
  }
  PreTokenizerStep cut;
  cut.kind = PreTokenizerStep::Kind::kSplitString;
  cut.literal = step.literal;
  cut.behavior = SplitBehavior::kMergedWithNext;
  return Split(cut, whole, out);
}

}  // namespace

absl::Status ApplyPreTokenizer(const std::vector<PreTokenizerStep>& steps,
                               std::deque<std::string>* arena, std::vector<Word>* words) {
  for (const PreTokenizerStep& step : steps) {
    std::vector<Word> out;
    out.reserve(words->size());
    for (const Word& word : *words) {
      switch (step.kind) {
        case PreTokenizerStep::Kind::kSplitRegex:
        case PreTokenizerStep::Kind::kSplitString:
          TANDEM_RETURN_IF_ERROR(Split(step, word, &out));
          break;
        case PreTokenizerStep::Kind::kPrefixSpace:
          if (word.text.starts_with(' ')) {
            out.push_back(word);
          } else {
            arena->emplace_back(1, ' ').append(word.text);
            out.push_back({arena->back(), word.starts_text});
          }
          break;
        case PreTokenizerStep::Kind::kBeforeRuns:
          CutBeforeRuns(step.literal, word, &out);
          break;
        case PreTokenizerStep::Kind::kMetaspace:
          TANDEM_RETURN_IF_ERROR(Metaspace(step, word, arena, &out));
          break;
      }
    }
    *words = std::move(out);
  }
  return absl::OkStatus();
}

}  // namespace tandem::tokenizer
