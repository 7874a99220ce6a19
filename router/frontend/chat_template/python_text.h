#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "router/frontend/chat_template/interpreter.h"
#include "router/frontend/chat_template/value.h"

namespace tandem::chat_template {

// repr() of a float: the shortest digits that give it back.
std::string FloatText(double value);
std::string IntegerText(Integer value);
// repr() of a string; quotes are trusted, the rest keeps its mark.
void AppendStringRepr(const TaintedText& text, TaintedText* out);

struct JsonFormat {
  bool ensure_ascii = false;
  bool sort_keys = false;
  std::optional<std::string> indent;  // of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
// json.dumps; nothing, with an error, for a value that is no JSON.
std::optional<TaintedText> ToJson(Interpreter& interpreter, const Value& value,
                                  const JsonFormat& format);

// str.format and str.format_map.
Value FormatBraces(Interpreter& interpreter, const TaintedText& format, const Arguments& arguments);
// format % arguments.
Value FormatPercent(Interpreter& interpreter, const TaintedText& format,
                    const std::vector<Value>& arguments);
// strftime of a time in UTC, in the C locale.
std::string FormatTime(int64_t unix_s, std::string_view format);

}  // namespace tandem::chat_template
