#include "common/structured_output/automaton.h"

#include <algorithm>
#include <map>
#include <queue>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "common/base/strings.h"

namespace tandem::structured_output {
namespace {

using Edge = Automaton::Edge;
using State = Automaton::State;

constexpr CodePoints kBelowSurrogates = {0, 0xd7ff};
constexpr CodePoints kAboveSurrogates = {0xe000, kLastCodePoint};

void JoinNeighbours(std::vector<Edge>* edges) {
  std::sort(edges->begin(), edges->end(),
            [](const Edge& a, const Edge& b) { return a.on.first < b.on.first; });
  std::vector<Edge> joined;
  for (const Edge& edge : *edges) {
    if (!joined.empty() && joined.back().to == edge.to &&
        joined.back().on.last + 1 == edge.on.first) {
      joined.back().on.last = edge.on.last;
    } else {
      joined.push_back(edge);
    }
  }
  *edges = std::move(joined);
}

// Of each state the fewest characters to an accepting one, -1 where there is no way. Equivalent
// states have the same, so it is where refinement starts.
std::vector<int32_t> DistancesOf(const Automaton& automaton) {
  std::vector<std::vector<int32_t>> before(automaton.states.size());
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    for (const Edge& edge : automaton.states[i].edges) {
      before[static_cast<size_t>(edge.to)].push_back(static_cast<int32_t>(i));
    }
  }
  std::vector<int32_t> distances(automaton.states.size(), -1);
  std::vector<int32_t> open;
  for (size_t i = 0; i < automaton.states.size(); ++i) {
    if (automaton.states[i].accepting) {
      distances[i] = 0;
      open.push_back(static_cast<int32_t>(i));
    }
  }
  for (size_t next = 0; next < open.size(); ++next) {
    const auto state = static_cast<size_t>(open[next]);
    for (const int32_t from : before[state]) {
      if (distances[static_cast<size_t>(from)] < 0) {
        distances[static_cast<size_t>(from)] = distances[state] + 1;
        open.push_back(from);
      }
    }
  }
  return distances;
}

// Classes of equivalent states, by refinement until nothing changes.
std::vector<int32_t> ClassesOf(const Automaton& automaton, std::vector<int32_t> classes) {
  const std::vector<int32_t> distances = classes;
  const size_t count = automaton.states.size();
  size_t num_classes = 0;
  while (true) {
    absl::flat_hash_map<std::vector<uint32_t>, int32_t> found;
    std::vector<int32_t> next(count);
    for (size_t i = 0; i < count; ++i) {
      std::vector<Edge> edges;
      for (const Edge& edge : automaton.states[i].edges) {
        if (distances[static_cast<size_t>(edge.to)] >= 0) {
          edges.push_back({edge.on, classes[static_cast<size_t>(edge.to)]});
        }
      }
      JoinNeighbours(&edges);
      std::vector<uint32_t> signature = {static_cast<uint32_t>(classes[i])};
      for (const Edge& edge : edges) {
        signature.insert(signature.end(),
                         {edge.on.first, edge.on.last, static_cast<uint32_t>(edge.to)});
      }
      next[i] =
          found.emplace(std::move(signature), static_cast<int32_t>(found.size())).first->second;
    }
    classes = std::move(next);
    if (found.size() == num_classes) {
      return classes;
    }
    num_classes = found.size();
  }
}

}  // namespace

CodePointSet AllCodePoints() { return {kBelowSurrogates, kAboveSurrogates}; }

CodePointSet Normalized(CodePointSet set) {
  std::sort(set.begin(), set.end(),
            [](const CodePoints& a, const CodePoints& b) { return a.first < b.first; });
  CodePointSet joined;
  for (const CodePoints& range : set) {
    if (!joined.empty() && range.first <= joined.back().last + 1) {
      joined.back().last = std::max(joined.back().last, range.last);
    } else {
      joined.push_back(range);
    }
  }
  return Intersection(joined, AllCodePoints());
}

CodePointSet Complement(const CodePointSet& set) {
  CodePointSet rest;
  uint32_t next = 0;
  for (const CodePoints& range : set) {
    if (range.first > next) {
      rest.push_back({next, range.first - 1});
    }
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) {
    rest.push_back({next, kLastCodePoint});
  }
  return Intersection(rest, AllCodePoints());
}

CodePointSet Intersection(const CodePointSet& a, const CodePointSet& b) {
  CodePointSet both;
  size_t i = 0;
  size_t j = 0;
  while (i < a.size() && j < b.size()) {
    const uint32_t first = std::max(a[i].first, b[j].first);
    const uint32_t last = std::min(a[i].last, b[j].last);
    if (first <= last) {
      both.push_back({first, last});
    }
    a[i].last < b[j].last ? ++i : ++j;
  }
  return both;
}

size_t CountOf(const CodePointSet& set) {
  size_t count = 0;
  for (const CodePoints& range : set) {
    count += range.last - range.first + 1;
  }
  return count;
}

std::vector<uint32_t> CodePointsOf(std::string_view utf8) {
  std::vector<uint32_t> points;
  for (size_t i = 0; i < utf8.size();) {
    const auto lead = static_cast<unsigned char>(utf8[i]);
    const size_t length = lead < 0x80 ? 1 : lead < 0xe0 ? 2 : lead < 0xf0 ? 3 : 4;
    uint32_t point = length == 1 ? lead : lead & (0xffu >> (length + 1));
    bool good = (lead < 0x80 || lead >= 0xc2) && lead < 0xf5 && i + length <= utf8.size();
    for (size_t k = 1; good && k < length; ++k) {
      const auto next = static_cast<unsigned char>(utf8[i + k]);
      good = (next & 0xc0u) == 0x80;
      point = point << 6 | (next & 0x3fu);
    }
    points.push_back(good ? point : 0xfffd);
    i += good ? length : 1;
  }
  return points;
}

bool Automaton::Accepts(std::string_view utf8) const {
  size_t state = 0;
  for (const uint32_t point : CodePointsOf(utf8)) {
    const std::vector<Edge>& edges = states[state].edges;
    const auto edge = std::find_if(edges.begin(), edges.end(), [point](const Edge& one) {
      return point >= one.on.first && point <= one.on.last;
    });
    if (edge == edges.end()) {
      return false;
    }
    state = static_cast<size_t>(edge->to);
  }
  return states[state].accepting;
}

Automaton AnyText() {
  Automaton any;
  any.states[0] = {true, {{kBelowSurrogates, 0}, {kAboveSurrogates, 0}}};
  return any;
}

Automaton TextsOf(std::span<const std::string_view> texts) {
  Automaton tree;
  for (const std::string_view text : texts) {
    size_t state = 0;
    for (const uint32_t point : CodePointsOf(text)) {
      std::vector<Edge>& edges = tree.states[state].edges;
      const auto edge = std::find_if(edges.begin(), edges.end(),
                                     [point](const Edge& one) { return one.on.first == point; });
      if (edge != edges.end()) {
        state = static_cast<size_t>(edge->to);
        continue;
      }
      const size_t next = tree.states.size();
      edges.push_back({{point, point}, static_cast<int32_t>(next)});
      tree.states.emplace_back();
      state = next;
    }
    tree.states[state].accepting = true;
  }
  return Minimized(std::move(tree));
}

absl::StatusOr<Automaton> TextsOfLength(int64_t min, std::optional<int64_t> max) {
  const int64_t last = std::max(min, max.value_or(0));
  if (last >= static_cast<int64_t>(kMaxAutomatonStates)) {
    return absl::ResourceExhaustedError(base::StrCat("a length of ", last, " is too large here"));
  }
  Automaton counter;
  counter.states.resize(static_cast<size_t>(last) + 1);
  for (int64_t i = 0; i <= last; ++i) {
    State& state = counter.states[static_cast<size_t>(i)];
    state.accepting = i >= min && (!max || i <= *max);
    if (i == last && max) {
      break;
    }
    const auto to = static_cast<int32_t>(std::min(i + 1, last));
    state.edges = {{kBelowSurrogates, to}, {kAboveSurrogates, to}};
  }
  return Minimized(std::move(counter));
}

absl::StatusOr<Automaton> Both(const Automaton& a, const Automaton& b) {
  Automaton both;
  both.states.clear();
  std::map<std::pair<int32_t, int32_t>, int32_t> numbers;
  std::vector<std::pair<int32_t, int32_t>> pairs;
  const auto number_of = [&](std::pair<int32_t, int32_t> pair) {
    const auto [it, is_new] = numbers.emplace(pair, static_cast<int32_t>(pairs.size()));
    if (is_new) {
      pairs.push_back(pair);
    }
    return it->second;
  };
  number_of({0, 0});
  for (size_t i = 0; i < pairs.size(); ++i) {
    if (pairs.size() > 4 * kMaxAutomatonStates) {
      return absl::ResourceExhaustedError("the constraints on a text are too complex together");
    }
    const State& left = a.states[static_cast<size_t>(pairs[i].first)];
    const State& right = b.states[static_cast<size_t>(pairs[i].second)];
    State state;
    state.accepting = left.accepting && right.accepting;
    for (size_t l = 0, r = 0; l < left.edges.size() && r < right.edges.size();) {
      const CodePoints& x = left.edges[l].on;
      const CodePoints& y = right.edges[r].on;
      const CodePoints on = {std::max(x.first, y.first), std::min(x.last, y.last)};
      if (on.first <= on.last) {
        state.edges.push_back({on, number_of({left.edges[l].to, right.edges[r].to})});
      }
      x.last < y.last ? ++l : ++r;
    }
    both.states.push_back(std::move(state));
  }
  both = Minimized(std::move(both));
  if (both.states.size() > kMaxAutomatonStates) {
    return absl::ResourceExhaustedError("the constraints on a text are too complex together");
  }
  return both;
}

Automaton Not(const Automaton& a) {
  Automaton result = a;
  const auto sink = static_cast<int32_t>(result.states.size());
  result.states.emplace_back();
  for (State& state : result.states) {
    state.accepting = !state.accepting;
    CodePointSet used;
    for (const Edge& edge : state.edges) {
      used.push_back(edge.on);
    }
    for (const CodePoints& range : Complement(Normalized(std::move(used)))) {
      state.edges.push_back({range, sink});
    }
    JoinNeighbours(&state.edges);
  }
  return Minimized(std::move(result));
}

Automaton Minimized(Automaton automaton) {
  const std::vector<int32_t> distances = DistancesOf(automaton);
  if (distances[0] < 0) {
    return Automaton();
  }
  const std::vector<int32_t> classes = ClassesOf(automaton, distances);
  Automaton small;
  small.states.clear();
  std::map<int32_t, int32_t> numbers = {{classes[0], 0}};
  std::vector<size_t> members = {0};
  for (size_t i = 0; i < members.size(); ++i) {
    const State& from = automaton.states[members[i]];
    State state;
    state.accepting = from.accepting;
    for (const Edge& edge : from.edges) {
      const auto to = static_cast<size_t>(edge.to);
      if (distances[to] < 0) {
        continue;
      }
      const auto [it, is_new] = numbers.emplace(classes[to], static_cast<int32_t>(members.size()));
      if (is_new) {
        members.push_back(to);
      }
      state.edges.push_back({edge.on, it->second});
    }
    JoinNeighbours(&state.edges);
    small.states.push_back(std::move(state));
  }
  return small;
}

LengthRange LengthsOf(const Automaton& automaton) {
  LengthRange range;
  const size_t count = automaton.states.size();
  std::vector<int64_t> shortest(count, -1);
  std::queue<size_t> open;
  shortest[0] = 0;
  open.push(0);
  bool found = false;
  while (!open.empty()) {
    const size_t state = open.front();
    open.pop();
    if (automaton.states[state].accepting && !found) {
      range.shortest = shortest[state];
      found = true;
    }
    for (const Edge& edge : automaton.states[state].edges) {
      const auto to = static_cast<size_t>(edge.to);
      if (shortest[to] < 0) {
        shortest[to] = shortest[state] + 1;
        open.push(to);
      }
    }
  }
  // Every state is useful, so a cycle makes the lengths unbounded: the longest walk that is no
  // cycle has fewer edges than there are states.
  std::vector<bool> here(count);
  here[0] = true;
  for (size_t length = 0; length <= count; ++length) {
    std::vector<bool> next(count);
    bool any = false;
    for (size_t i = 0; i < count; ++i) {
      if (!here[i]) {
        continue;
      }
      any = true;
      if (automaton.states[i].accepting) {
        range.longest = static_cast<int64_t>(length);
      }
      for (const Edge& edge : automaton.states[i].edges) {
        next[static_cast<size_t>(edge.to)] = true;
      }
    }
    if (!any) {
      return range;
    }
    here = std::move(next);
  }
  range.longest.reset();
  return range;
}

}  // namespace tandem::structured_output
