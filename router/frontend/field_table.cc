#include "router/frontend/field_table.h"

#include <charconv>
#include <cmath>
#include <limits>

#include "router/frontend/field_readers.h"

namespace tandem::router {
namespace {

constexpr int64_t kMaxInt64 = std::numeric_limits<int64_t>::max();
constexpr int64_t kMinInt64 = std::numeric_limits<int64_t>::min();
constexpr int64_t kMaxInt32 = std::numeric_limits<int32_t>::max();

// What is allowed; the upper end only where it is of interest.
std::string Range(int64_t min, int64_t max, bool above) {
  if (min == kMinInt64 && max == kMaxInt64) {
    return "an integer of 64 bits";
  }
  return max >= kMaxInt32 && !above
             ? "an integer of at least " + std::to_string(min)
             : "an integer from " + std::to_string(min) + " to " + std::to_string(max);
}

std::string ShortNumber(double value) {
  char digits[32];
  return std::string(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

ApiResult ReadInteger(const Field& field, const Integer& kind, const Json& value,
                      GenerationRequest* request) {
  const auto number = AsInteger(value);
  if (!number || *number < kind.min || *number > kind.max) {
    return WrongField(field.name, Range(kind.min, kind.max, number && *number > kind.max), value);
  }
  request->*kind.target = *number;
  return std::nullopt;
}

ApiResult ReadNumber(const Field& field, const Number& kind, const Json& value,
                     GenerationRequest* request) {
  const double number = value.is_number() ? value.get<double>() : std::nan("");
  if (!(number >= kind.min && number <= kind.max) || (kind.above_min && number <= kind.min)) {
    return WrongField(field.name,
                      "a number " + std::string(kind.above_min ? "above " : "from ") +
                          ShortNumber(kind.min) + (kind.above_min ? " and up to " : " to ") +
                          ShortNumber(kind.max),
                      value);
  }
  request->*kind.target = number;
  return std::nullopt;
}

}  // namespace

ApiResult ReadField(const Field& field, const Json& value, const Json& body,
                    GenerationRequest* request) {
  if (const auto* integer = std::get_if<Integer>(&field.kind)) {
    return ReadInteger(field, *integer, value, request);
  }
  if (const auto* number = std::get_if<Number>(&field.kind)) {
    return ReadNumber(field, *number, value, request);
  }
  if (const auto* custom = std::get_if<Custom>(&field.kind)) {
    return (*custom)(field.name, value, request);
  }
  if (const auto* refused = std::get_if<Refused>(&field.kind)) {
    return refused->harmless(value, body)
               ? ApiResult()
               : InvalidRequest(refused->message, std::string(field.name), "unsupported_parameter");
  }
  if (const auto* ignored = std::get_if<Ignored>(&field.kind)) {
    return ignored->fits == nullptr || ignored->fits(value)
               ? ApiResult()
               : WrongField(field.name, ignored->expected, value);
  }
  const auto* flag = std::get_if<Flag>(&field.kind);
  const auto* optional_flag = std::get_if<OptionalFlag>(&field.kind);
  if (!value.is_boolean()) {
    return WrongField(field.name, "true or false", value);
  }
  if (flag != nullptr) {
    request->*flag->target = value.get<bool>();
  } else {
    request->*optional_flag->target = value.get<bool>();
  }
  return std::nullopt;
}

}  // namespace tandem::router
