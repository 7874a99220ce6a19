#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "absl/status/statusor.h"
#include "common/structured_output/ebnf_writer.h"
#include "nlohmann/json.hpp"

namespace tandem::structured_output {

using Json = nlohmann::ordered_json;

// White space between JSON tokens: none, a space, or a line end with an indentation. Bounded, so
// that a model cannot go on with it for ever.
std::string SpaceRule(EbnfWriter* writer);
// What follows the first quote of any string, last quote included.
std::string StringTailRule(EbnfWriter* writer);
std::string NumberRule(bool only_integers, EbnfWriter* writer);
// Any value; any object.
std::string ValueRule(EbnfWriter* writer);
std::string ObjectRule(EbnfWriter* writer);
// A string of `min` to `max` characters, first quote included.
absl::StatusOr<std::string> StringOfLength(int64_t min, std::optional<int64_t> max,
                                           EbnfWriter* writer);
// Exactly this value, with white space where JSON allows it.
std::string ConstantBody(const Json& value, EbnfWriter* writer);

}  // namespace tandem::structured_output
