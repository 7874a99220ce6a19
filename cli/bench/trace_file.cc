#include "cli/bench/trace_file.h"

#include <algorithm>
#include <cmath>
#include <cstdio>

#include "absl/strings/ascii.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/strings/string_view.h"
#include "common/base/files.h"
#include "common/base/status_macros.h"

namespace tandem::cli {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 30;
constexpr size_t kMostTraceBytes = size_t{1} << 30;

// Days since 1970-01-01 in the Gregorian calendar, counting years from March.
int64_t DaysFromCivil(int64_t year, int64_t month, int64_t day) {
  const int64_t shifted_year = month <= 2 ? year - 1 : year;
  const int64_t shifted_month = month <= 2 ? month + 9 : month - 3;
  return 365 * shifted_year + shifted_year / 4 - shifted_year / 100 + shifted_year / 400 +
         (153 * shifted_month + 2) / 5 + day - 1 - 719468;
}

int DaysOfMonth(int year, int month) {
  constexpr int kDays[] = {31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31};
  const bool is_leap = (year % 4 == 0 && year % 100 != 0) || year % 400 == 0;
  return kDays[month - 1] + (month == 2 && is_leap ? 1 : 0);
}

std::optional<double> ParseTimestampSeconds(absl::string_view text) {
  double seconds = 0;
  if (absl::SimpleAtod(text, &seconds)) {
    return std::isfinite(seconds) && std::abs(seconds) < 1e12 ? std::optional<double>(seconds)
                                                              : std::nullopt;
  }
  int year = 0;
  int month = 0;
  int day = 0;
  int hour = 0;
  int minute = 0;
  const std::string copy(text);
  const int fields = std::sscanf(copy.c_str(), "%4d-%2d-%2d%*[ T]%2d:%2d:%lf", &year, &month, &day,
                                 &hour, &minute, &seconds);
  if (fields != 6 || year < 1970 || month < 1 || month > 12 || day < 1 ||
      day > DaysOfMonth(year, month) || hour < 0 || hour > 23 || minute < 0 || minute > 59 ||
      !(seconds >= 0.0 && seconds < 61.0)) {
    return std::nullopt;
  }
  return static_cast<double>(DaysFromCivil(year, month, day) * 86400 + hour * 3600 + minute * 60) +
         seconds;
}

struct Columns {
  std::vector<std::string> names;
  std::optional<size_t> timestamp;
  std::optional<size_t> prompt;
  std::optional<size_t> output;
};

std::vector<absl::string_view> SplitLine(absl::string_view line) {
  std::vector<absl::string_view> fields = absl::StrSplit(line, ',');
  for (absl::string_view& field : fields) {
    field = absl::StripAsciiWhitespace(field);
  }
  return fields;
}

absl::StatusOr<Columns> ReadHeader(absl::string_view line) {
  Columns columns;
  const std::vector<absl::string_view> names = SplitLine(line);
  for (size_t i = 0; i < names.size(); ++i) {
    if (std::find(columns.names.begin(), columns.names.end(), names[i]) != columns.names.end()) {
      return absl::InvalidArgumentError(absl::StrCat("line 1: column ", names[i], " twice"));
    }
    columns.names.emplace_back(names[i]);
    if (names[i] == "TIMESTAMP") {
      columns.timestamp = i;
    } else if (names[i] == "ContextTokens" || names[i] == "prompt_tokens") {
      columns.prompt = i;
    } else if (names[i] == "GeneratedTokens" || names[i] == "output_tokens") {
      columns.output = i;
    }
  }
  if (!columns.prompt) {
    return absl::InvalidArgumentError("line 1: no column ContextTokens or prompt_tokens");
  }
  if (!columns.output) {
    return absl::InvalidArgumentError("line 1: no column GeneratedTokens or output_tokens");
  }
  return columns;
}

absl::StatusOr<int64_t> Tokens(const std::vector<absl::string_view>& fields, size_t column,
                               const std::vector<std::string>& names) {
  int64_t value = 0;
  const absl::string_view text = column < fields.size() ? fields[column] : "";
  if (!absl::SimpleAtoi(text, &value) || value < 0 || value > kMaxTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("column ", column + 1, " (", names[column], ") is '", text,
                     "'; allowed: a token count from 0 to ", kMaxTokens));
  }
  return value;
}

}  // namespace

absl::StatusOr<std::vector<TraceRequest>> ParseTrace(const std::string& text,
                                                     int64_t max_requests) {
  std::vector<TraceRequest> requests;
  std::optional<Columns> columns;
  double first_seconds = 0;
  int64_t line_number = 0;
  for (const absl::string_view raw : absl::StrSplit(text, '\n')) {
    ++line_number;
    const absl::string_view line = absl::StripAsciiWhitespace(raw);
    if (line.empty()) {
      continue;
    }
    if (!columns) {
      TANDEM_ASSIGN_OR_RETURN(columns, ReadHeader(line));
      continue;
    }
    const std::vector<absl::string_view> fields = SplitLine(line);
    if (fields.size() > columns->names.size()) {
      return absl::InvalidArgumentError(absl::StrCat("line ", line_number, ": ", fields.size(),
                                                     " columns; the first line names ",
                                                     columns->names.size()));
    }
    const absl::StatusOr<int64_t> prompt = Tokens(fields, *columns->prompt, columns->names);
    const absl::StatusOr<int64_t> output = Tokens(fields, *columns->output, columns->names);
    if (!prompt.ok() || !output.ok()) {
      return absl::InvalidArgumentError(
          absl::StrCat("line ", line_number, ": ",
                       prompt.ok() ? output.status().message() : prompt.status().message()));
    }
    TraceRequest request{std::nullopt, std::max<int64_t>(*prompt, 1),
                         std::max<int64_t>(*output, 1)};
    if (columns->timestamp) {
      const std::optional<double> seconds = *columns->timestamp < fields.size()
                                                ? ParseTimestampSeconds(fields[*columns->timestamp])
                                                : std::nullopt;
      if (!seconds) {
        return absl::InvalidArgumentError(
            absl::StrCat("line ", line_number, ": TIMESTAMP is neither a date nor seconds"));
      }
      first_seconds = requests.empty() ? *seconds : first_seconds;
      request.arrival_us = std::max<int64_t>(
          static_cast<int64_t>(std::llround((*seconds - first_seconds) * 1e6)), 0);
    }
    requests.push_back(request);
    if (max_requests > 0 && static_cast<int64_t>(requests.size()) >= max_requests) {
      break;
    }
  }
  if (requests.empty()) {
    return absl::InvalidArgumentError("no requests in it");
  }
  return requests;
}

absl::StatusOr<std::vector<TraceRequest>> ReadTrace(const std::string& path, int64_t max_requests) {
  const absl::StatusOr<std::string> text = base::ReadFileTail(path, 0, kMostTraceBytes);
  if (!text.ok()) {
    return absl::Status(text.status().code(), absl::StrCat(path, ": cannot be read"));
  }
  absl::StatusOr<std::vector<TraceRequest>> requests = ParseTrace(*text, max_requests);
  if (!requests.ok()) {
    return absl::Status(requests.status().code(),
                        absl::StrCat(path, ": ", requests.status().message()));
  }
  return requests;
}

}  // namespace tandem::cli
