#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"

// Sets of texts as finite automata over Unicode code points. Values; every thread may use them.
namespace tandem::structured_output {

struct CodePoints {
  uint32_t first = 0;
  uint32_t last = 0;
  friend bool operator==(const CodePoints&, const CodePoints&) = default;
};

// Sorted and disjoint ranges.
using CodePointSet = std::vector<CodePoints>;

inline constexpr uint32_t kLastCodePoint = 0x10ffff;

CodePointSet AllCodePoints();  // without surrogates
CodePointSet Normalized(CodePointSet set);
CodePointSet Complement(const CodePointSet& set);
CodePointSet Intersection(const CodePointSet& a, const CodePointSet& b);
size_t CountOf(const CodePointSet& set);

// A deterministic automaton whose states are all useful: reachable, and able to reach an accepting
// one (unless it accepts nothing). State 0 is the start.
struct Automaton {
  struct Edge {
    CodePoints on;
    int32_t to = 0;
  };
  struct State {
    bool accepting = false;
    std::vector<Edge> edges;  // sorted, disjoint
  };
  std::vector<State> states = {State()};

  bool accepts_nothing() const { return states.size() == 1 && !states[0].accepting; }
  bool Accepts(std::string_view utf8) const;
};

// States beyond which an automaton is refused (ResourceExhausted).
inline constexpr size_t kMaxAutomatonStates = 3000;

Automaton AnyText();
Automaton TextsOf(std::span<const std::string_view> texts);
// Texts of `min` to `max` code points.
absl::StatusOr<Automaton> TextsOfLength(int64_t min, std::optional<int64_t> max);
absl::StatusOr<Automaton> Both(const Automaton& a, const Automaton& b);
Automaton Not(const Automaton& a);
// Drops useless states and joins equivalent ones.
Automaton Minimized(Automaton automaton);

// Lengths of the accepted texts in code points; no longest: unbounded.
struct LengthRange {
  int64_t shortest = 0;
  std::optional<int64_t> longest;
};
LengthRange LengthsOf(const Automaton& automaton);

// UTF-8 to code points; bytes that are no UTF-8 give U+FFFD.
std::vector<uint32_t> CodePointsOf(std::string_view utf8);

}  // namespace tandem::structured_output
