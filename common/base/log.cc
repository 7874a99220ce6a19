#include "common/base/log.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <ctime>

#include "common/base/clock.h"
#include "common/base/strings.h"

namespace tandem::base {
namespace {

struct Settings {
  std::string process = "tandem";
  LogLevel level = LogLevel::kInfo;
  bool json = false;
};

Settings& MutableSettings() {
  static Settings* settings = new Settings;  // outlives every thread that may still log at exit
  return *settings;
}

const char* LevelName(LogLevel level) {
  switch (level) {
    case LogLevel::kDebug:
      return "debug";
    case LogLevel::kInfo:
      return "info";
    case LogLevel::kWarning:
      return "warning";
    case LogLevel::kError:
      return "error";
  }
  return "error";
}

std::string TimeText(int64_t unix_us) {
  const time_t seconds = static_cast<time_t>(unix_us / 1'000'000);
  std::tm parts{};
  gmtime_r(&seconds, &parts);
  char text[64];
  std::snprintf(text, sizeof(text), "%04d-%02d-%02dT%02d:%02d:%02d.%06dZ", parts.tm_year + 1900,
                parts.tm_mon + 1, parts.tm_mday, parts.tm_hour, parts.tm_min, parts.tm_sec,
                static_cast<int>(unix_us % 1'000'000));
  return text;
}

// Length of the well-formed UTF-8 sequence at the start of `text`, 0 when there is none.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char lead = byte(0);
  const size_t length = lead < 0x80                    ? 1
                        : lead >= 0xc2 && lead <= 0xdf ? 2
                        : lead >= 0xe0 && lead <= 0xef ? 3
                        : lead >= 0xf0 && lead <= 0xf4 ? 4
                                                       : 0;
  if (length == 0 || text.size() < length) {
    return 0;
  }
  for (size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  const bool overlong = (lead == 0xe0 && byte(1) < 0xa0) || (lead == 0xf0 && byte(1) < 0x90);
  const bool out_of_range = (lead == 0xed && byte(1) > 0x9f) || (lead == 0xf4 && byte(1) > 0x8f);
  return overlong || out_of_range ? 0 : length;
}

// Control characters, quotes and malformed UTF-8 escaped as in JSON: nothing that a client sends
// can start a new line or break the format.
void AppendEscaped(std::string_view text, std::string* out) {
  while (!text.empty()) {
    const char c = text[0];
    const size_t length = Utf8Length(text);
    if (length == 0) {
      out->append("\\ufffd");
    } else if (c == '"' || c == '\\') {
      out->push_back('\\');
      out->push_back(c);
    } else if (c == '\n') {
      out->append("\\n");
    } else if (length == 1 && (static_cast<unsigned char>(c) < 0x20 || c == 0x7f)) {
      char escaped[8];
      std::snprintf(escaped, sizeof(escaped), "\\u%04x", static_cast<unsigned>(c));
      out->append(escaped);
    } else {
      out->append(text.substr(0, length));
    }
    text.remove_prefix(length == 0 ? 1 : length);
  }
}

void AppendQuoted(std::string_view text, std::string* out) {
  out->push_back('"');
  AppendEscaped(text, out);
  out->push_back('"');
}

// "nan" and "inf" are no JSON.
bool IsJsonLiteral(const LogField& field) {
  return field.is_number && field.value.find('n') == std::string::npos;
}

std::string JsonLine(std::string_view time, LogLevel level, std::string_view message,
                     LogFields fields) {
  std::string line =
      StrCat("{\"time\":\"", time, "\",\"level\":\"", LevelName(level), "\",\"process\":");
  AppendQuoted(MutableSettings().process, &line);
  line += ",\"message\":";
  AppendQuoted(message, &line);
  for (const LogField& field : fields) {
    line += ",";
    AppendQuoted(field.key, &line);
    line += ":";
    if (IsJsonLiteral(field)) {
      line += field.value;
    } else {
      AppendQuoted(field.value, &line);
    }
  }
  line += "}\n";
  return line;
}

std::string TextLine(std::string_view time, LogLevel level, std::string_view message,
                     LogFields fields) {
  std::string line = StrCat(time, " ", LevelName(level), " ", MutableSettings().process, ": ");
  for (const char c : message) {  // quotes stay readable; only what could forge a line is escaped
    if (static_cast<unsigned char>(c) < 0x20) {
      AppendEscaped(std::string_view(&c, 1), &line);
    } else {
      line.push_back(c);
    }
  }
  for (const LogField& field : fields) {
    StrAppend(&line, " ", field.key, "=");
    const bool plain =
        !field.value.empty() && field.value.find_first_not_of(
                                    "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                    "0123456789_-./:+@%,") == std::string::npos;
    if (plain) {
      line += field.value;
    } else {
      AppendQuoted(field.value, &line);
    }
  }
  line += "\n";
  return line;
}

}  // namespace

absl::Status InitLogging(std::string_view process_name, std::string_view level,
                         std::string_view format) {
  Settings& settings = MutableSettings();
  settings.process = std::string(process_name);
  bool known = false;
  for (const LogLevel candidate :
       {LogLevel::kDebug, LogLevel::kInfo, LogLevel::kWarning, LogLevel::kError}) {
    if (level == LevelName(candidate)) {
      settings.level = candidate;
      known = true;
    }
  }
  if (!known) {
    return absl::InvalidArgumentError(
        StrCat("log level '", level, "' is unknown; allowed: debug, info, warning, error"));
  }
  if (format != "text" && format != "json") {
    return absl::InvalidArgumentError(
        StrCat("log format '", format, "' is unknown; allowed: text, json"));
  }
  settings.json = format == "json";
  return absl::OkStatus();
}

bool LogEnabled(LogLevel level) { return level >= MutableSettings().level; }

void Log(LogLevel level, std::string_view message, LogFields fields) {
  if (!LogEnabled(level)) {
    return;
  }
  const Settings& settings = MutableSettings();
  const std::string time = TimeText(SystemClock().UnixUs());
  const std::string line = settings.json ? JsonLine(time, level, message, fields)
                                         : TextLine(time, level, message, fields);
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t count = write(STDERR_FILENO, line.data() + written, line.size() - written);
    if (count < 0 && errno == EINTR) {
      continue;
    }
    if (count <= 0) {
      return;  // nowhere left to complain
    }
    written += static_cast<size_t>(count);
  }
}

}  // namespace tandem::base
