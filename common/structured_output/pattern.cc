#include "common/structured_output/pattern.h"

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/status_macros.h"
#include "common/structured_output/pattern_parser.h"

namespace tandem::structured_output {
namespace {

constexpr size_t kMaxStates = 40'000;    // of the nondeterministic automaton
constexpr size_t kMaxWork = 20'000'000;  // steps of making it deterministic

// Thompson's construction. Edges without a code point are free, or passable only before the first
// or after the last character.
class Machine {
 public:
  struct Part {
    int32_t in = 0;
    int32_t out = 0;
  };
  enum class When : uint8_t { kAlways, kAtBegin, kAtEnd };

  int32_t NewState() {
    free_.emplace_back();
    moves_.emplace_back();
    return static_cast<int32_t>(free_.size()) - 1;
  }
  void Free(int32_t from, int32_t to, When when = When::kAlways) {
    free_[static_cast<size_t>(from)].emplace_back(to, when);
  }
  void Move(int32_t from, const CodePointSet& set, int32_t to) {
    for (const CodePoints& range : set) {
      moves_[static_cast<size_t>(from)].push_back({range, to});
    }
  }

  absl::StatusOr<Part> Build(const PatternNode& node) {
    if (free_.size() > kMaxStates) {
      return absl::ResourceExhaustedError("the regular expression is too large");
    }
    switch (node.kind) {
      case PatternNode::Kind::kSequence:
        return Sequence(node);
      case PatternNode::Kind::kAlternatives:
        return Alternatives(node);
      case PatternNode::Kind::kRepeat:
        return Repeat(node);
      case PatternNode::Kind::kSet:
      case PatternNode::Kind::kBegin:
      case PatternNode::Kind::kEnd:
        break;
    }
    const Part part = {NewState(), NewState()};
    if (node.kind == PatternNode::Kind::kSet) {
      Move(part.in, node.set, part.out);
    } else {
      Free(part.in, part.out,
           node.kind == PatternNode::Kind::kBegin ? When::kAtBegin : When::kAtEnd);
    }
    return part;
  }

  absl::StatusOr<Automaton> Determine(Part whole);

 private:
  absl::StatusOr<Part> Sequence(const PatternNode& node) {
    Part part;
    part.in = part.out = NewState();
    for (const PatternNode& child : node.children) {
      TANDEM_ASSIGN_OR_RETURN(const Part next, Build(child));
      Free(part.out, next.in);
      part.out = next.out;
    }
    return part;
  }
  absl::StatusOr<Part> Alternatives(const PatternNode& node) {
    const Part part = {NewState(), NewState()};
    for (const PatternNode& child : node.children) {
      TANDEM_ASSIGN_OR_RETURN(const Part next, Build(child));
      Free(part.in, next.in);
      Free(next.out, part.out);
    }
    return part;
  }
  absl::StatusOr<Part> Repeat(const PatternNode& node) {
    Part part;
    part.in = part.out = NewState();
    for (int i = 0; i < node.min; ++i) {
      TANDEM_ASSIGN_OR_RETURN(const Part next, Build(node.children[0]));
      Free(part.out, next.in);
      part.out = next.out;
    }
    const int32_t end = NewState();
    Free(part.out, end);
    for (int i = node.min; i < node.max.value_or(node.min + 1); ++i) {
      TANDEM_ASSIGN_OR_RETURN(const Part next, Build(node.children[0]));
      Free(part.out, next.in);
      Free(next.out, end);
      if (!node.max) {
        Free(next.out, next.in);
      }
      part.out = next.out;
    }
    part.out = end;
    return part;
  }

  using Subset = std::vector<int32_t>;
  Subset Closure(Subset states, bool at_begin, bool at_end) const {
    std::vector<bool> seen(free_.size());
    for (const int32_t state : states) {
      seen[static_cast<size_t>(state)] = true;
    }
    for (size_t i = 0; i < states.size(); ++i) {
      for (const auto& [to, when] : free_[static_cast<size_t>(states[i])]) {
        const bool passable = when == When::kAlways || (when == When::kAtBegin && at_begin) ||
                              (when == When::kAtEnd && at_end);
        if (passable && !seen[static_cast<size_t>(to)]) {
          seen[static_cast<size_t>(to)] = true;
          states.push_back(to);
        }
      }
    }
    std::sort(states.begin(), states.end());
    return states;
  }
  // The ranges in which all code points lead to the same states, with these.
  std::vector<std::pair<CodePoints, Subset>> MovesOf(const Subset& states) const;

  std::vector<std::vector<std::pair<int32_t, When>>> free_;
  std::vector<std::vector<Automaton::Edge>> moves_;
};

std::vector<std::pair<CodePoints, Machine::Subset>> Machine::MovesOf(const Subset& states) const {
  std::vector<uint32_t> cuts;
  for (const int32_t state : states) {
    for (const Automaton::Edge& move : moves_[static_cast<size_t>(state)]) {
      cuts.push_back(move.on.first);
      cuts.push_back(move.on.last + 1);
    }
  }
  std::sort(cuts.begin(), cuts.end());
  cuts.erase(std::unique(cuts.begin(), cuts.end()), cuts.end());
  std::vector<std::pair<CodePoints, Subset>> result;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    result.push_back({{cuts[i], cuts[i + 1] - 1}, {}});
  }
  for (const int32_t state : states) {
    for (const Automaton::Edge& move : moves_[static_cast<size_t>(state)]) {
      auto cut = static_cast<size_t>(std::lower_bound(cuts.begin(), cuts.end(), move.on.first) -
                                     cuts.begin());
      for (; cut < result.size() && result[cut].first.last <= move.on.last; ++cut) {
        result[cut].second.push_back(move.to);
      }
    }
  }
  return result;
}

absl::StatusOr<Automaton> Machine::Determine(Part whole) {
  Automaton automaton;
  automaton.states.clear();
  // The begin is no state of its own among equals: what is passable there is gone afterwards.
  std::map<std::pair<bool, Subset>, int32_t> numbers;
  std::vector<std::pair<bool, Subset>> open;
  const auto number_of = [&](bool at_begin, Subset states) {
    const auto [it, is_new] =
        numbers.emplace(std::pair(at_begin, std::move(states)), static_cast<int32_t>(open.size()));
    if (is_new) {
      open.push_back(it->first);
    }
    return it->second;
  };
  number_of(true, Closure({whole.in}, true, false));
  size_t work = 0;
  for (size_t i = 0; i < open.size(); ++i) {
    const auto [at_begin, states] = open[i];
    work += states.size() + free_.size() / 16;
    if (open.size() > 2 * kMaxAutomatonStates || work > kMaxWork) {
      return absl::ResourceExhaustedError("the regular expression is too large");
    }
    Automaton::State state;
    const Subset at_end = Closure(states, at_begin, true);
    state.accepting = std::binary_search(at_end.begin(), at_end.end(), whole.out);
    for (auto& [range, targets] : MovesOf(states)) {
      if (targets.empty()) {
        continue;
      }
      std::sort(targets.begin(), targets.end());
      targets.erase(std::unique(targets.begin(), targets.end()), targets.end());
      Subset closed = Closure(std::move(targets), false, false);
      work += closed.size() + free_.size() / 16;
      state.edges.push_back({range, number_of(false, std::move(closed))});
    }
    automaton.states.push_back(std::move(state));
  }
  automaton = Minimized(std::move(automaton));
  if (automaton.states.size() > kMaxAutomatonStates) {
    return absl::ResourceExhaustedError("the regular expression is too large");
  }
  return automaton;
}

}  // namespace

absl::StatusOr<Automaton> CompilePattern(std::string_view pattern, PatternUse use) {
  TANDEM_ASSIGN_OR_RETURN(const PatternNode node, ParsePattern(pattern));
  Machine machine;
  TANDEM_ASSIGN_OR_RETURN(const Machine::Part inner, machine.Build(node));
  const Machine::Part whole = {machine.NewState(), machine.NewState()};
  machine.Free(whole.in, inner.in);
  machine.Free(inner.out, whole.out);
  if (use == PatternUse::kSearch) {
    machine.Move(whole.in, AllCodePoints(), whole.in);
    machine.Move(whole.out, AllCodePoints(), whole.out);
  }
  return machine.Determine(whole);
}

}  // namespace tandem::structured_output
