// The kinds of options: how each reads, checks and shows its value.
#include <charconv>
#include <cmath>
#include <limits>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_join.h"
#include "common/base/config.h"
#include "common/base/config_impl.h"
#include "common/base/strings.h"

namespace tandem::base {
namespace {

absl::Status Allowed(std::string_view what) {
  return absl::InvalidArgumentError(StrCat("allowed: ", what));
}

absl::StatusOr<int64_t> ReadInt(std::string_view text, int64_t min, int64_t max) {
  int64_t value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < min || value > max) {
    if (max == std::numeric_limits<int64_t>::max()) {
      return Allowed(StrCat("an integer of at least ", min));
    }
    return Allowed(StrCat("an integer from ", min, " to ", max));
  }
  return value;
}

absl::StatusOr<uint64_t> ReadBytes(std::string_view text) {
  static constexpr std::string_view kAllowed =
      "a number of bytes, or a number with KiB, MiB, GiB or TiB";
  static constexpr std::pair<std::string_view, int> kSuffixes[] = {
      {"KiB", 10}, {"MiB", 20}, {"GiB", 30}, {"TiB", 40}};
  int shift = 0;
  for (const auto& [suffix, bits] : kSuffixes) {
    if (absl::EndsWith(AbslView(text), AbslView(suffix))) {
      text.remove_suffix(suffix.size());
      text = StdView(absl::StripTrailingAsciiWhitespace(AbslView(text)));
      shift = bits;
      break;
    }
  }
  if (text.empty() || !absl::ascii_isdigit(static_cast<unsigned char>(text[0]))) {
    return Allowed(kAllowed);
  }
  uint64_t whole = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), whole);
  if (error == std::errc() && end == text.data() + text.size()) {
    if (whole > (std::numeric_limits<uint64_t>::max() >> shift)) {
      return Allowed("less than 16 EiB");
    }
    return whole << shift;
  }
  double number = 0;
  const bool plain = text.find_first_not_of("0123456789.") == std::string_view::npos;
  if (shift == 0 || !plain || !absl::SimpleAtod(AbslView(text), &number)) {
    return Allowed(kAllowed);
  }
  const double bytes = std::ldexp(number, shift);
  if (bytes >= 0x1p63) {
    return Allowed("less than 8 EiB");
  }
  return static_cast<uint64_t>(bytes);
}

absl::StatusOr<bool> ReadBool(std::string_view text) {
  if (text == "true" || text == "1" || text == "yes" || text == "on") {
    return true;
  }
  if (text == "false" || text == "0" || text == "no" || text == "off") {
    return false;
  }
  return Allowed("true, false");
}

}  // namespace

std::string YamlQuoted(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') {
      out += '\\';
    }
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out + "\"";
}

void ConfigSpec::String(std::string name, std::string* target, std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "TEXT", .help = std::move(help)};
  option.secret = absl::EndsWith(option.name, "api-key");
  option.store = [target](std::string_view text) {
    *target = std::string(text);
    return absl::OkStatus();
  };
  option.show = [target] { return YamlQuoted(*target); };
  impl_->Add(std::move(option));
}

void ConfigSpec::Strings(std::string name, std::vector<std::string>* target, std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "TEXT", .help = std::move(help)};
  option.repeatable = true;
  option.clear = [target] { target->clear(); };
  option.secret = absl::EndsWith(option.name, "api-key");
  option.store = [target](std::string_view text) {
    target->emplace_back(text);
    return absl::OkStatus();
  };
  option.show = [target] {
    return StrCat(
        "[",
        absl::StrJoin(*target, ", ",
                      [](std::string* out, const std::string& s) { *out += YamlQuoted(s); }),
        "]");
  };
  impl_->Add(std::move(option));
}

void ConfigSpec::Choice(std::string name, std::string* target, std::vector<std::string> allowed,
                        std::string help) {
  ConfigOption option{
      .name = std::move(name), .value_name = absl::StrJoin(allowed, "|"), .help = std::move(help)};
  option.store = [target, allowed = std::move(allowed)](std::string_view text) -> absl::Status {
    for (const std::string& candidate : allowed) {
      if (text == candidate) {
        *target = candidate;
        return absl::OkStatus();
      }
    }
    return Allowed(absl::StrJoin(allowed, ", "));
  };
  option.show = [target] { return *target; };
  impl_->Add(std::move(option));
}

void ConfigSpec::Int(std::string name, int64_t* target, int64_t min, int64_t max,
                     std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "N", .help = std::move(help)};
  option.store = [target, min, max](std::string_view text) -> absl::Status {
    const auto value = ReadInt(text, min, max);
    if (value.ok()) {
      *target = *value;
    }
    return value.status();
  };
  option.show = [target] { return StrCat(*target); };
  impl_->Add(std::move(option));
}

void ConfigSpec::OptionalInt(std::string name, std::optional<int64_t>* target, int64_t min,
                             int64_t max, std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "N", .help = std::move(help)};
  option.store = [target, min, max](std::string_view text) -> absl::Status {
    const auto value = ReadInt(text, min, max);
    if (value.ok()) {
      *target = *value;
    }
    return value.status();
  };
  option.show = [target] { return target->has_value() ? StrCat(**target) : ""; };
  impl_->Add(std::move(option));
}

void ConfigSpec::Double(std::string name, double* target, double min, double max,
                        std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "NUMBER", .help = std::move(help)};
  option.store = [target, min, max](std::string_view text) -> absl::Status {
    double value = 0;
    // SimpleAtod would take blanks around the number and hexadecimal as well.
    const bool plain = text.find_first_not_of("0123456789.eE+-") == std::string_view::npos;
    if (!plain || !absl::SimpleAtod(AbslView(text), &value) || !(value >= min && value <= max)) {
      return Allowed(StrCat("a number from ", min, " to ", max));
    }
    *target = value;
    return absl::OkStatus();
  };
  option.show = [target] { return StrCat(*target); };
  impl_->Add(std::move(option));
}

void ConfigSpec::Bytes(std::string name, std::optional<uint64_t>* target, std::string help) {
  ConfigOption option{.name = std::move(name), .value_name = "BYTES", .help = std::move(help)};
  option.store = [target](std::string_view text) -> absl::Status {
    const auto value = ReadBytes(text);
    if (value.ok()) {
      *target = *value;
    }
    return value.status();
  };
  option.show = [target] { return target->has_value() ? StrCat(**target) : ""; };
  impl_->Add(std::move(option));
}

void ConfigSpec::Bool(std::string name, bool* target, std::string help) {
  ConfigOption option{.name = std::move(name), .help = std::move(help)};
  option.store = [target](std::string_view text) -> absl::Status {
    const auto value = ReadBool(text);
    if (value.ok()) {
      *target = *value;
    }
    return value.status();
  };
  option.show = [target] { return *target ? "true" : "false"; };
  impl_->Add(std::move(option));
}

void ConfigSpec::Custom(std::string name, std::string value_name,
                        std::function<absl::Status(std::string_view)> parse, std::string help) {
  ConfigOption option{
      .name = std::move(name), .value_name = std::move(value_name), .help = std::move(help)};
  auto text = std::make_shared<std::string>();
  option.store = [text, parse = std::move(parse)](std::string_view value) -> absl::Status {
    *text = std::string(value);
    return parse(value);
  };
  option.show = [text] { return text->empty() ? "" : YamlQuoted(*text); };
  impl_->Add(std::move(option));
}

void ConfigSpec::Positional(std::string value_name, std::vector<std::string>* target, int max_count,
                            std::string help) {
  impl_->positional = {std::move(value_name), std::move(help), target, max_count};
}

}  // namespace tandem::base
