#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/model_files/stored_tensor.h"

namespace tandem::model_files {

// The container of a GGUF file, version 3, little-endian: its metadata and its tensor directory.
// Points into the bytes it was parsed from, which must outlive it.
class GgufFile {
 public:
  // `bytes` is the whole file and is not trusted; errors name `file` and the field.
  static absl::StatusOr<GgufFile> Parse(std::span<const std::byte> bytes, std::string file);

  const std::string& file() const { return file_; }
  const TensorTable& tensors() const { return tensors_; }

  // Metadata. An absent key gives nullopt or an empty vector; a value of another kind or outside
  // [min, max] is InvalidArgument.
  absl::StatusOr<std::optional<int64_t>> Int(absl::string_view key, int64_t min, int64_t max) const;
  absl::StatusOr<std::optional<double>> Number(absl::string_view key) const;
  absl::StatusOr<std::optional<bool>> Bool(absl::string_view key) const;
  absl::StatusOr<std::optional<std::string>> String(absl::string_view key) const;
  absl::StatusOr<std::vector<std::string>> Strings(absl::string_view key) const;
  absl::StatusOr<std::vector<float>> Floats(absl::string_view key) const;
  absl::StatusOr<std::vector<int32_t>> Ints(absl::string_view key) const;
  bool Has(absl::string_view key) const { return values_.contains(key); }
  // Whether `key` is an array; the one place where some writers store a list for a number.
  bool IsArray(absl::string_view key) const;

 private:
  friend class GgufParser;

  enum class Type : uint32_t {
    kUint8 = 0,
    kInt8 = 1,
    kUint16 = 2,
    kInt16 = 3,
    kUint32 = 4,
    kInt32 = 5,
    kFloat32 = 6,
    kBool = 7,
    kString = 8,
    kArray = 9,
    kUint64 = 10,
    kInt64 = 11,
    kFloat64 = 12,
  };
  struct Value {
    Type type = Type::kUint8;
    Type element_type = Type::kUint8;  // of an array
    uint64_t count = 0;                // of an array
    // A string's text; a number's bytes; an array's elements as stored, their lengths checked.
    std::span<const std::byte> bytes;
  };

  static size_t SizeOf(Type type);
  static std::optional<int64_t> IntegerAt(Type type, const std::byte* at);
  absl::Status WrongType(absl::string_view key, absl::string_view wanted) const;
  const Value* Find(absl::string_view key) const;

  std::string file_;
  absl::flat_hash_map<absl::string_view, Value> values_;
  TensorTable tensors_;
};

}  // namespace tandem::model_files
