#include "router/frontend/json_text.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace tandem::router {
namespace {

constexpr size_t kMaxDepth = 100;
// Members are found by linear search, so that an object of n costs n * n / 2; this is a tenth of a
// second.
constexpr uint64_t kMaxMemberCost = 20'000'000;
constexpr size_t kBriefBytes = 60;

// Bounds on the shape, found before anything is built.
ApiResult CheckShape(std::string_view text) {
  std::vector<uint64_t> members;  // of each open object or array
  uint64_t cost = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') {
        ++i;
      } else if (c == '"') {
        in_string = false;
      }
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      members.push_back(0);
      if (members.size() > kMaxDepth) {
        return InvalidRequest("The JSON body is nested more than " + std::to_string(kMaxDepth) +
                              " levels deep.");
      }
    } else if ((c == '}' || c == ']') && !members.empty()) {
      members.pop_back();
    } else if (c == ':' && !members.empty()) {
      cost += ++members.back();
      if (cost > kMaxMemberCost) {
        return InvalidRequest("The JSON body has an object with too many members.");
      }
    }
  }
  return std::nullopt;
}

// Takes everything and keeps the error.
class ErrorCatcher : public nlohmann::json_sax<Json> {
 public:
  bool null() override { return true; }
  bool boolean(bool) override { return true; }
  bool number_integer(number_integer_t) override { return true; }
  bool number_unsigned(number_unsigned_t) override { return true; }
  bool number_float(number_float_t, const string_t&) override { return true; }
  bool string(string_t&) override { return true; }
  bool binary(binary_t&) override { return true; }
  bool start_object(size_t) override { return true; }
  bool key(string_t&) override { return true; }
  bool end_object() override { return true; }
  bool start_array(size_t) override { return true; }
  bool end_array() override { return true; }
  bool parse_error(size_t, const std::string&, const nlohmann::detail::exception& error) override {
    what = error.what();
    return false;
  }
  std::string what;
};

// Why `text` is no JSON, with line and column, in a few words.
std::string CauseOf(std::string_view text) {
  constexpr size_t kMaxBytes = 200;
  ErrorCatcher catcher;
  Json::sax_parse(text.begin(), text.end(), &catcher);
  std::string cause = catcher.what;
  cause.erase(0, cause.starts_with('[') ? cause.find("] ") + 2 : 0);  // the library's number of it
  if (cause.size() > kMaxBytes) {
    cause.resize(kMaxBytes);
    cause += "...";
  }
  return cause;
}

// Length of the valid UTF-8 sequence at the start of `text`, 0 when it is broken.
size_t Utf8Length(std::string_view text) {
  const auto byte = [&](size_t i) { return static_cast<unsigned char>(text[i]); };
  const unsigned char first = byte(0);
  size_t length = 0;
  unsigned char low = 0x80, high = 0xbf;
  if (first >= 0xc2 && first <= 0xdf) {
    length = 2;
  } else if (first >= 0xe0 && first <= 0xef) {
    length = 3;
    low = first == 0xe0 ? 0xa0 : 0x80;
    high = first == 0xed ? 0x9f : 0xbf;
  } else if (first >= 0xf0 && first <= 0xf4) {
    length = 4;
    low = first == 0xf0 ? 0x90 : 0x80;
    high = first == 0xf4 ? 0x8f : 0xbf;
  }
  if (length == 0 || text.size() < length || byte(1) < low || byte(1) > high) {
    return 0;
  }
  for (size_t i = 2; i < length; ++i) {
    if ((byte(i) & 0xc0) != 0x80) {
      return 0;
    }
  }
  return length;
}

void AppendEscaped(unsigned char c, std::string* out) {
  static constexpr char kHex[] = "0123456789abcdef";
  switch (c) {
    case '"':
      *out += "\\\"";
      break;
    case '\\':
      *out += "\\\\";
      break;
    case '\n':
      *out += "\\n";
      break;
    case '\r':
      *out += "\\r";
      break;
    case '\t':
      *out += "\\t";
      break;
    default:
      *out += "\\u00";
      *out += kHex[c >> 4];
      *out += kHex[c & 15];
  }
}

}  // namespace

ApiResult ParseJson(std::string_view text, Json* out) {
  if (text.find_first_not_of(" \t\r\n") == std::string_view::npos) {
    return InvalidRequest("The request's body is empty; a JSON object is expected.");
  }
  if (ApiResult error = CheckShape(text)) {
    return error;
  }
  *out = Json::parse(text.begin(), text.end(), nullptr, /*allow_exceptions=*/false);
  if (out->is_discarded()) {
    return InvalidRequest("The request's body is not valid JSON: " + CauseOf(text) + ".");
  }
  return std::nullopt;
}

void AppendJsonString(std::string_view text, std::string* out) {
  *out += '"';
  size_t plain = 0;  // start of what can be copied as it is
  size_t i = 0;
  const auto flush = [&](size_t end) { out->append(text.substr(plain, end - plain)); };
  while (i < text.size()) {
    const unsigned char c = static_cast<unsigned char>(text[i]);
    if (c >= 0x80) {
      if (const size_t length = Utf8Length(text.substr(i)); length > 0) {
        i += length;
        continue;
      }
      flush(i);
      *out += "\xef\xbf\xbd";
      plain = ++i;
    } else if (c < 0x20 || c == '"' || c == '\\') {
      flush(i);
      AppendEscaped(c, out);
      plain = ++i;
    } else {
      ++i;
    }
  }
  flush(text.size());
  *out += '"';
}

void AppendJsonInt(int64_t value, std::string* out) {
  char digits[24];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

void AppendJsonFloat(float value, std::string* out) {
  if (std::isnan(value)) {
    *out += "null";
    return;
  }
  value = std::isinf(value) ? std::copysign(9999.0F, value) : value;
  char digits[32];
  out->append(digits, std::to_chars(digits, digits + sizeof digits, value).ptr);
}

std::string Brief(const Json& value) {
  if (value.is_object()) {
    return "an object";
  }
  if (value.is_array()) {
    return value.empty() ? "an empty list" : "a list of " + std::to_string(value.size());
  }
  std::string text = value.dump(-1, ' ', true, Json::error_handler_t::replace);
  if (text.size() > kBriefBytes) {
    text.resize(kBriefBytes);
    text += "...";
  }
  return text;
}

std::string ErrorBody(const ApiError& error) {
  std::string body = "{\"error\":{\"message\":";
  AppendJsonString(error.message, &body);
  body += ",\"type\":";
  AppendJsonString(ErrorType(error.http_status), &body);
  for (const auto& [name, value] : {std::pair("param", &error.param), {"code", &error.code}}) {
    body += ",\"";
    body += name;
    body += "\":";
    if (value->empty()) {
      body += "null";
    } else {
      AppendJsonString(*value, &body);
    }
  }
  body += "}}";
  return body;
}

}  // namespace tandem::router
