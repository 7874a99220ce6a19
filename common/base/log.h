#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>

#include "absl/status/status.h"

namespace tandem::base {

enum class LogLevel { kDebug, kInfo, kWarning, kError };

// One key of a structured log line. Values are text; numbers are formatted by the constructors.
struct LogField {
  LogField(std::string_view k, std::string_view v) : key(k), value(v) {}
  LogField(std::string_view k, const char* v) : key(k), value(v) {}
  LogField(std::string_view k, const std::string& v) : key(k), value(v) {}
  LogField(std::string_view k, int64_t v) : key(k), value(std::to_string(v)), is_number(true) {}
  LogField(std::string_view k, uint64_t v) : key(k), value(std::to_string(v)), is_number(true) {}
  LogField(std::string_view k, int v) : LogField(k, static_cast<int64_t>(v)) {}
  LogField(std::string_view k, unsigned v) : LogField(k, static_cast<uint64_t>(v)) {}
  LogField(std::string_view k, double v) : key(k), value(std::to_string(v)), is_number(true) {}
  LogField(std::string_view k, bool v) : key(k), value(v ? "true" : "false"), is_number(true) {}

  std::string_view key;
  std::string value;
  bool is_number = false;  // printed without quotes in JSON
};

using LogFields = std::initializer_list<LogField>;

// `level` is debug, info, warning or error; `format` is text or json. Lines go to stderr with time,
// level and the process's name. Call once, before threads start.
absl::Status InitLogging(std::string_view process_name, std::string_view level,
                         std::string_view format);

// Whether Log would write such a line: for fields that are dear to make.
bool LogEnabled(LogLevel level);

// Thread-safe; one write per line. A line about a request carries the field request_id.
void Log(LogLevel level, std::string_view message, LogFields fields = {});

inline void LogDebug(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kDebug, message, fields);
}
inline void LogInfo(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kInfo, message, fields);
}
inline void LogWarning(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kWarning, message, fields);
}
inline void LogError(std::string_view message, LogFields fields = {}) {
  Log(LogLevel::kError, message, fields);
}

}  // namespace tandem::base
