#include "common/structured_output/number_language.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <vector>

#include "common/base/status_macros.h"
#include "common/base/strings.h"

namespace tandem::structured_output {
namespace {

// How the digits read so far compare with those of a bound.
struct Comparison {
  int order = 0;  // of the digits at the same place, -1, 0 or 1
  friend auto operator<=>(const Comparison&, const Comparison&) = default;
};

// Reads the digits of a number that is not negative and compares it with two bounds.
struct Reading {
  int integer_digits = 0;
  int fraction_digits = -1;  // -1: no point yet
  bool leading_zero = false;
  Comparison low;
  Comparison high;
  int64_t remainder = 0;
  auto key() const {
    return std::tuple(integer_digits, fraction_digits, leading_zero, low.order, high.order,
                      remainder);
  }
};

int DigitOrder(const std::string& digits, size_t at, int digit) {
  const int other = at < digits.size() ? digits[at] - '0' : 0;
  return digit < other ? -1 : digit > other ? 1 : 0;
}

// Bounds of an absolute value.
struct Span {
  std::optional<Decimal> low;
  std::optional<Decimal> high;
  bool low_is_allowed = true;
  bool high_is_allowed = true;
};

class DigitReader {
 public:
  DigitReader(const NumberLimits& limits, const Span& span) : limits_(limits), span_(span) {
    max_integer_ = span.high ? static_cast<int>(span.high->integer.size()) : kMaxIntegerDigits;
    max_fraction_ = limits.only_integers || limits.multiple_of > 0 ? 0
                    : limits.max_fraction_digits >= 0              ? limits.max_fraction_digits
                                                                   : kMaxFractionDigits;
  }

  std::optional<Reading> Digit(Reading reading, int digit) const {
    if (reading.fraction_digits >= 0) {
      if (reading.fraction_digits == max_fraction_) {
        return std::nullopt;
      }
      const auto at = static_cast<size_t>(reading.fraction_digits);
      Refine(span_.low, &Decimal::fraction, at, digit, &reading.low);
      Refine(span_.high, &Decimal::fraction, at, digit, &reading.high);
      ++reading.fraction_digits;
      return reading;
    }
    if (reading.leading_zero || reading.integer_digits == max_integer_) {
      return std::nullopt;
    }
    reading.leading_zero = reading.integer_digits == 0 && digit == 0;
    const auto at = static_cast<size_t>(reading.integer_digits);
    Refine(span_.low, &Decimal::integer, at, digit, &reading.low);
    Refine(span_.high, &Decimal::integer, at, digit, &reading.high);
    ++reading.integer_digits;
    if (limits_.multiple_of > 0) {
      reading.remainder = (reading.remainder * 10 + digit) % limits_.multiple_of;
    }
    return reading;
  }

  std::optional<Reading> Point(Reading reading) const {
    if (reading.fraction_digits >= 0 || reading.integer_digits == 0 || max_fraction_ == 0) {
      return std::nullopt;
    }
    reading.low.order = OrderOfIntegers(span_.low, reading, reading.low);
    reading.high.order = OrderOfIntegers(span_.high, reading, reading.high);
    reading.fraction_digits = 0;
    // What lies behind the point depends on the comparisons alone.
    reading.integer_digits = 1;
    reading.leading_zero = false;
    return reading;
  }

  bool IsNumber(const Reading& reading) const {
    if (reading.integer_digits == 0 || reading.fraction_digits == 0 || reading.remainder != 0) {
      return false;
    }
    const int low = FinalOrder(span_.low, reading, reading.low);
    const int high = FinalOrder(span_.high, reading, reading.high);
    return (!span_.low || low > 0 || (low == 0 && span_.low_is_allowed)) &&
           (!span_.high || high < 0 || (high == 0 && span_.high_is_allowed));
  }

 private:
  static void Refine(const std::optional<Decimal>& bound, std::string Decimal::*part, size_t at,
                     int digit, Comparison* comparison) {
    if (bound && comparison->order == 0) {
      comparison->order = DigitOrder((*bound).*part, at, digit);
    }
  }
  static int OrderOfIntegers(const std::optional<Decimal>& bound, const Reading& reading,
                             const Comparison& comparison) {
    if (!bound) {
      return 0;
    }
    const auto digits = static_cast<int>(bound->integer.size());
    return reading.integer_digits != digits ? (reading.integer_digits < digits ? -1 : 1)
                                            : comparison.order;
  }
  static int FinalOrder(const std::optional<Decimal>& bound, const Reading& reading,
                        const Comparison& comparison) {
    if (!bound) {
      return 0;
    }
    const bool has_point = reading.fraction_digits >= 0;
    const int order = has_point ? comparison.order : OrderOfIntegers(bound, reading, comparison);
    const auto read = static_cast<size_t>(std::max(reading.fraction_digits, 0));
    // Equal so far, and the bound has more digits: they are not all zero.
    return order == 0 && bound->fraction.size() > read ? -1 : order;
  }

  const NumberLimits& limits_;
  const Span& span_;
  int max_integer_ = 0;
  int max_fraction_ = 0;
};

absl::StatusOr<Automaton> ReadAll(const DigitReader& reader) {
  Automaton automaton;
  automaton.states.clear();
  std::map<decltype(Reading().key()), int32_t> numbers;
  std::vector<Reading> open;
  const auto number_of = [&](const Reading& reading) {
    const auto [it, is_new] = numbers.emplace(reading.key(), static_cast<int32_t>(open.size()));
    if (is_new) {
      open.push_back(reading);
    }
    return it->second;
  };
  number_of(Reading());
  for (size_t i = 0; i < open.size(); ++i) {
    if (open.size() > 40 * kMaxAutomatonStates) {
      return absl::ResourceExhaustedError("the limits of a number need too large a grammar");
    }
    const Reading reading = open[i];
    Automaton::State state;
    state.accepting = reader.IsNumber(reading);
    if (const auto next = reader.Point(reading)) {
      state.edges.push_back({{'.', '.'}, number_of(*next)});
    }
    for (int digit = 0; digit < 10; ++digit) {
      if (const auto next = reader.Digit(reading, digit)) {
        const auto c = static_cast<uint32_t>('0' + digit);
        state.edges.push_back({{c, c}, number_of(*next)});
      }
    }
    automaton.states.push_back(std::move(state));
  }
  return Minimized(std::move(automaton));
}

// A start state with the edges of both, the second behind a minus.
Automaton WithSign(const Automaton& positive, const Automaton& negative) {
  Automaton both = positive;
  const auto shift = static_cast<int32_t>(both.states.size());
  for (Automaton::State state : negative.states) {
    for (Automaton::Edge& edge : state.edges) {
      edge.to += shift;
    }
    both.states.push_back(std::move(state));
  }
  Automaton::State start = both.states[0];
  start.edges.insert(start.edges.begin(), {{'-', '-'}, shift});
  const auto old_start = static_cast<int32_t>(both.states.size());
  both.states.push_back(both.states[0]);
  for (Automaton::State& state : both.states) {
    for (Automaton::Edge& edge : state.edges) {
      edge.to = edge.to == 0 ? old_start : edge.to;
    }
  }
  both.states[0] = start;
  return Minimized(std::move(both));
}

}  // namespace

absl::StatusOr<Decimal> ParseDecimal(const std::string& text) {
  constexpr int64_t kMaxDigits = 330;  // a double's
  Decimal number;
  size_t at = text[0] == '-' ? 1 : 0;
  const bool negative = at == 1;
  std::string digits;
  int64_t point = -1;
  for (; at < text.size() && text[at] != 'e' && text[at] != 'E'; ++at) {
    if (text[at] == '.') {
      point = static_cast<int64_t>(digits.size());
    } else {
      digits.push_back(text[at]);
    }
  }
  point = point < 0 ? static_cast<int64_t>(digits.size()) : point;
  if (at < text.size()) {
    point += std::clamp<int64_t>(std::atoll(text.c_str() + at + 1), -1000, 1000);
  }
  if (point > kMaxDigits || point < -kMaxDigits ||
      static_cast<int64_t>(digits.size()) > kMaxDigits) {
    return absl::InvalidArgumentError(base::StrCat("the number ", text, " is out of range"));
  }
  if (point < 0) {
    digits.insert(0, static_cast<size_t>(-point), '0');
    point = 0;
  }
  if (static_cast<int64_t>(digits.size()) < point) {
    digits.append(static_cast<size_t>(point) - digits.size(), '0');
  }
  number.integer = digits.substr(0, static_cast<size_t>(point));
  number.fraction = digits.substr(static_cast<size_t>(point));
  number.integer.erase(0, std::min(number.integer.find_first_not_of('0'), number.integer.size()));
  number.fraction.erase(number.fraction.find_last_not_of('0') + 1);
  number.integer = number.integer.empty() ? "0" : number.integer;
  number.negative = negative && !number.is_zero();
  return number;
}

int Compare(const Decimal& a, const Decimal& b) {
  if (a.negative != b.negative) {
    return a.negative ? -1 : 1;
  }
  const int sign = a.negative ? -1 : 1;
  if (a.integer.size() != b.integer.size()) {
    return a.integer.size() < b.integer.size() ? -sign : sign;
  }
  const int integers = a.integer.compare(b.integer);
  const int order = integers != 0 ? integers : a.fraction.compare(b.fraction);
  return order < 0 ? -sign : order > 0 ? sign : 0;
}

absl::StatusOr<Automaton> NumbersWithin(const NumberLimits& limits) {
  if (limits.multiple_of > kMaxMultiple) {
    return absl::ResourceExhaustedError(base::StrCat("multipleOf is over ", kMaxMultiple));
  }
  const auto absolute = [](std::optional<Decimal> bound) {
    if (bound) {
      bound->negative = false;
    }
    return bound;
  };
  const Decimal zero;
  Automaton positive;
  Automaton negative;
  if (!limits.max || Compare(*limits.max, zero) >= 0) {
    const bool has_low = limits.min && Compare(*limits.min, zero) >= 0;
    const Span span = {has_low ? limits.min : std::nullopt, limits.max, limits.min_is_allowed,
                       limits.max_is_allowed};
    TANDEM_ASSIGN_OR_RETURN(positive, ReadAll(DigitReader(limits, span)));
  }
  if (!limits.min || limits.min->negative) {
    // Minus zero is a number, too; it is left out where zero is a bound.
    const bool has_low = limits.max && Compare(*limits.max, zero) <= 0;
    const Span span = {absolute(has_low ? limits.max : std::nullopt), absolute(limits.min),
                       limits.max_is_allowed, limits.min_is_allowed};
    TANDEM_ASSIGN_OR_RETURN(negative, ReadAll(DigitReader(limits, span)));
  }
  return WithSign(positive, negative);
}

}  // namespace tandem::structured_output
