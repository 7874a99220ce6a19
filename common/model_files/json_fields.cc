#include "common/model_files/json_fields.h"

#include <cmath>
#include <set>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "common/base/json_nesting.h"
#include "common/base/status_macros.h"

namespace tandem::model_files {
namespace {

using nlohmann::json;

constexpr int kMaxDepth = 32;

}  // namespace

absl::StatusOr<json> ParseJsonObject(absl::string_view text, const std::string& file) {
  if (base::NestsDeeperThan({text.data(), text.size()}, kMaxDepth)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": nests deeper than ", kMaxDepth));
  }
  std::vector<std::set<std::string>> keys;  // seen in the objects that are open
  std::string twice;
  const auto watch = [&](int, json::parse_event_t event, json& parsed) {
    if (event == json::parse_event_t::object_start) {
      keys.emplace_back();
    } else if (event == json::parse_event_t::object_end && !keys.empty()) {
      keys.pop_back();
    } else if (event == json::parse_event_t::key && !keys.empty()) {
      const std::string& key = parsed.get_ref<const std::string&>();
      if (!keys.back().insert(key).second && twice.empty()) {
        twice = key.empty() ? "\"\"" : key;
      }
    }
    return true;
  };
  json value = json::parse(text.begin(), text.end(), watch, /*allow_exceptions=*/false);
  if (value.is_discarded() || !value.is_object()) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": not a JSON object"));
  }
  if (!twice.empty()) {
    return absl::InvalidArgumentError(
        absl::StrCat(file, ": key ", twice.substr(0, 80), " occurs twice"));
  }
  return value;
}

std::string JsonFields::Field(const char* name) const {
  return absl::StrCat(file_, ": ", path_, path_.empty() ? "" : ".", name);
}

absl::Status JsonFields::Invalid(const char* name, absl::string_view what) const {
  return absl::InvalidArgumentError(absl::StrCat(Field(name), " ", what));
}

absl::Status JsonFields::Unsupported(const char* name, absl::string_view what) const {
  return absl::UnimplementedError(absl::StrCat(Field(name), " ", what));
}

const json* JsonFields::Any(const char* name) const {
  const auto found = object_.find(name);
  return found == object_.end() || found->is_null() ? nullptr : &*found;
}

absl::StatusOr<std::optional<int64_t>> JsonFields::Int(const char* name, int64_t min,
                                                       int64_t max) const {
  const json* value = Any(name);
  if (value == nullptr) {
    return std::optional<int64_t>();
  }
  double number = 0;
  if (value->is_number()) {
    number = value->get<double>();  // exact for all that [min, max] can hold
  }
  // Some writers give whole numbers as 8192.0.
  if (!value->is_number() || std::trunc(number) != number) {
    return Invalid(name, "is not an integer");
  }
  if (!(number >= static_cast<double>(min) && number <= static_cast<double>(max))) {
    return Invalid(name, absl::StrCat("is ", number, "; allowed: ", min, " to ", max));
  }
  return std::optional<int64_t>(static_cast<int64_t>(number));
}

absl::StatusOr<std::optional<double>> JsonFields::Number(const char* name) const {
  const json* value = Any(name);
  if (value == nullptr) {
    return std::optional<double>();
  }
  if (!value->is_number()) {
    return Invalid(name, "is not a number");
  }
  return std::optional<double>(value->get<double>());
}

absl::StatusOr<std::optional<bool>> JsonFields::Bool(const char* name) const {
  const json* value = Any(name);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (!value->is_boolean()) {
    return Invalid(name, "is not true or false");
  }
  return std::optional<bool>(value->get<bool>());
}

absl::StatusOr<std::optional<std::string>> JsonFields::String(const char* name) const {
  const json* value = Any(name);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (!value->is_string()) {
    return Invalid(name, "is not a string");
  }
  return std::optional<std::string>(value->get<std::string>());
}

absl::StatusOr<const json*> JsonFields::Object(const char* name) const {
  const json* value = Any(name);
  if (value != nullptr && !value->is_object()) {
    return Invalid(name, "is not an object");
  }
  return value;
}

absl::StatusOr<const json*> JsonFields::Array(const char* name) const {
  const json* value = Any(name);
  if (value != nullptr && !value->is_array()) {
    return Invalid(name, "is not an array");
  }
  return value;
}

}  // namespace tandem::model_files
