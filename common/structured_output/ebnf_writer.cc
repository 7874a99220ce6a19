#include "common/structured_output/ebnf_writer.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/strings/str_format.h"
#include "absl/strings/str_join.h"
#include "common/base/strings.h"

namespace tandem::structured_output {
namespace {

constexpr uint32_t kBroadSet = 5000;  // code points

std::string Escaped(uint32_t point, std::string_view special) {
  if (point >= 0x20 && point < 0x7f) {
    const char c = static_cast<char>(point);
    return special.find(c) == std::string_view::npos ? std::string(1, c) : std::string({'\\', c});
  }
  if (point < 0x20 || point == 0x7f) {
    return absl::StrFormat("\\x%02x", point);
  }
  return point <= 0xffff ? absl::StrFormat("\\u%04x", point) : absl::StrFormat("\\U%08x", point);
}

// The spellings in a JSON string of what `set` holds, as alternatives.
std::vector<std::string> JsonSpellings(const CodePointSet& set) {
  static const CodePointSet kPlain = Complement({{0, 0x1f}, {'"', '"'}, {'\\', '\\'}});
  static constexpr std::pair<char, uint32_t> kShort[] = {
      {'"', '"'}, {'\\', '\\'}, {'b', 8}, {'f', 12}, {'n', 10}, {'r', 13}, {'t', 9}};
  std::vector<std::string> spellings;
  if (const CodePointSet plain = Intersection(set, kPlain); !plain.empty()) {
    spellings.push_back(EbnfSet(plain));
  }
  CodePointSet letters;
  for (const auto& [letter, point] : kShort) {
    if (!Intersection(set, {{point, point}}).empty()) {
      letters.push_back({static_cast<uint32_t>(letter), static_cast<uint32_t>(letter)});
    }
  }
  if (!letters.empty()) {
    spellings.push_back(base::StrCat("\"\\\\\" ", EbnfSet(Normalized(std::move(letters)))));
  }
  static const CodePointSet kNoShort = {{0, 7}, {11, 11}, {14, 31}};
  for (const CodePoints& range : Intersection(set, kNoShort)) {
    for (uint32_t high = range.first / 16; high <= range.last / 16; ++high) {
      const uint32_t first = std::max(range.first, high * 16) % 16;
      const uint32_t last = std::min(range.last, high * 16 + 15) % 16;
      CodePointSet digits;
      for (uint32_t digit = first; digit <= last; ++digit) {
        const uint32_t c = digit < 10 ? '0' + digit : 'a' + digit - 10;
        digits.push_back({c, c});
        if (digit >= 10) {
          digits.push_back({c - 32, c - 32});
        }
      }
      spellings.push_back(
          base::StrCat("\"\\\\u00", high, "\" ", EbnfSet(Normalized(std::move(digits)))));
    }
  }
  return spellings;
}

}  // namespace

std::string EbnfLiteral(std::string_view utf8) {
  std::string out = "\"";
  for (const uint32_t point : CodePointsOf(utf8)) {
    out += Escaped(point, "\"\\");
  }
  return out + "\"";
}

std::string EbnfSet(const CodePointSet& set) {
  std::string out = "[";
  for (const CodePoints& range : set) {
    out += Escaped(range.first, "]^-\\");
    if (range.last > range.first) {
      base::StrAppend(&out, "-", Escaped(range.last, "]^-\\"));
    }
  }
  return out + "]";
}

std::string EbnfWriter::Reserve() {
  rules_.emplace_back();
  return base::StrCat("r", rules_.size() - 1);
}

void EbnfWriter::Define(const std::string& name, const std::string& body) {
  bytes_ += body.size();
  rules_[static_cast<size_t>(std::stoul(name.substr(1)))] = body;
}

std::string EbnfWriter::Rule(const std::string& body) {
  const auto it = names_.find(body);
  if (it != names_.end()) {
    return it->second;
  }
  std::string name = Reserve();
  Define(name, body);
  names_.emplace(body, name);
  return name;
}

std::string EbnfWriter::Recursive(const std::string& key,
                                  const std::function<std::string(const std::string&)>& body) {
  const auto it = keys_.find(key);
  if (it != keys_.end()) {
    return it->second;
  }
  std::string name = Reserve();
  keys_.emplace(key, name);
  Define(name, body(name));
  return name;
}

absl::StatusOr<std::string> EbnfWriter::Finish(const std::string& root_body) const {
  if (is_full()) {
    return absl::ResourceExhaustedError("the grammar it needs is too large");
  }
  std::string out = base::StrCat("root ::= ", root_body, "\n");
  for (size_t i = 0; i < rules_.size(); ++i) {
    base::StrAppend(&out, "r", i, " ::= ", rules_[i], "\n");
  }
  return out;
}

std::string AutomatonRule(const Automaton& automaton, TextForm form, EbnfWriter* writer) {
  std::vector<std::string> names;
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    names.push_back(writer->Reserve());
  }
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    const Automaton::State& state = automaton.states[i];
    std::map<int32_t, CodePointSet> targets;
    for (const Automaton::Edge& edge : state.edges) {
      targets[edge.to].push_back(edge.on);
    }
    std::vector<std::string> alternatives;
    if (state.accepting) {
      alternatives.push_back(form == TextForm::kRaw ? "\"\"" : "\"\\\"\"");
    }
    for (const auto& [to, set] : targets) {
      const std::vector<std::string> spellings =
          form == TextForm::kRaw ? std::vector<std::string>{EbnfSet(set)} : JsonSpellings(set);
      for (const std::string& spelling : spellings) {
        alternatives.push_back(base::StrCat(spelling, " ", names[static_cast<size_t>(to)]));
      }
    }
    writer->Define(names[i], absl::StrJoin(alternatives, " | "));
  }
  return names[0];
}

size_t BroadStates(const Automaton& automaton) {
  size_t count = 0;
  for (const Automaton::State& state : automaton.states) {
    uint32_t points = 0;
    for (const Automaton::Edge& edge : state.edges) {
      points += edge.on.last - edge.on.first + 1;
    }
    count += points >= kBroadSet ? 1 : 0;
  }
  return count;
}

}  // namespace tandem::structured_output
