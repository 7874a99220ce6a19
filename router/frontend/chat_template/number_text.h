#pragma once

#include <optional>
#include <string_view>

#include "router/frontend/chat_template/value.h"

namespace tandem::chat_template {

// Python's int(text, base): spaces around, a sign, single underscores, a prefix that fits the base.
std::optional<Integer> ParseInteger(std::string_view text, int base);
// Python's float(text).
std::optional<double> ParseFloat(std::string_view text);
// int() of a float; nothing for NaN, infinities and values beyond 128 bits.
std::optional<Integer> IntegerOfFloat(double value);

}  // namespace tandem::chat_template
