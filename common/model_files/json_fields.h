#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "nlohmann/json.hpp"

namespace tandem::model_files {

// Parses an object from a file that is not trusted. InvalidArgument, naming `file`, for malformed
// text, anything but an object, a key that occurs twice, or nesting over 32. Throws nothing.
absl::StatusOr<nlohmann::json> ParseJsonObject(absl::string_view text, const std::string& file);

// Typed reading of an object's fields. Absent and null give nullopt; a value of another type or
// outside [min, max] is InvalidArgument and names file and field. Points to the object.
class JsonFields {
 public:
  // `path` comes before field names in messages: "config.json: rope_scaling.factor".
  JsonFields(const nlohmann::json& object, std::string file, std::string path = "")
      : object_(object), file_(std::move(file)), path_(std::move(path)) {}

  absl::StatusOr<std::optional<int64_t>> Int(const char* name, int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Number(const char* name) const;
  absl::StatusOr<std::optional<bool>> Bool(const char* name) const;
  absl::StatusOr<std::optional<std::string>> String(const char* name) const;
  // Null when absent or null.
  absl::StatusOr<const nlohmann::json*> Object(const char* name) const;
  absl::StatusOr<const nlohmann::json*> Array(const char* name) const;
  // Any type; null when absent or null.
  const nlohmann::json* Any(const char* name) const;
  // Whether the field is there, be it null: some classes' defaults hold for absent fields only.
  bool Has(const char* name) const { return object_.contains(name); }

  // InvalidArgument or Unimplemented about a field.
  absl::Status Invalid(const char* name, absl::string_view what) const;
  absl::Status Unsupported(const char* name, absl::string_view what) const;
  const std::string& file() const { return file_; }

 private:
  std::string Field(const char* name) const;

  const nlohmann::json& object_;
  std::string file_;
  std::string path_;
};

}  // namespace tandem::model_files
