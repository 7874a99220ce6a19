#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/structured_output/automaton.h"

namespace tandem::structured_output {

// A decimal number, exactly.
struct Decimal {
  bool negative = false;
  std::string integer = "0";  // no leading zeros
  std::string fraction;       // no trailing zeros
  bool is_zero() const { return integer == "0" && fraction.empty(); }
};

// Of a JSON number's text; InvalidArgument where it has too many digits.
absl::StatusOr<Decimal> ParseDecimal(const std::string& text);
// < 0, 0 or > 0.
int Compare(const Decimal& a, const Decimal& b);

struct NumberLimits {
  bool only_integers = false;
  std::optional<Decimal> min;
  std::optional<Decimal> max;
  bool min_is_allowed = true;
  bool max_is_allowed = true;
  int64_t multiple_of = 0;       // > 0: integers that it divides
  int max_fraction_digits = -1;  // >= 0: at most these (multiples of 0.1, 0.01, ...)
};

// Digits of a number that has no limits of its own; they keep every number finite.
inline constexpr int kMaxIntegerDigits = 18;  // 64 bits hold them
inline constexpr int kMaxFractionDigits = 20;
inline constexpr int kMaxExponentDigits = 2;  // no parser overflows
inline constexpr int64_t kMaxMultiple = 2000;

// JSON's spellings, without an exponent, of the numbers within the limits.
absl::StatusOr<Automaton> NumbersWithin(const NumberLimits& limits);

}  // namespace tandem::structured_output
