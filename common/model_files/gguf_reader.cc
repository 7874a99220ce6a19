#include "common/model_files/gguf_reader.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/tensor_type.h"

static_assert(std::endian::native == std::endian::little,
              "model files are read in place; they are little-endian");

namespace tandem::model_files {
namespace {

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr uint32_t kVersion = 3;
constexpr uint32_t kVersionSwapped = kVersion << 24;  // as a big-endian file shows it
constexpr uint64_t kDefaultAlignment = 32;
constexpr uint64_t kMaxAlignment = uint64_t{1} << 20;
constexpr uint64_t kMaxKeyBytes = 65535;  // the specification's limit
constexpr int kMaxArrayDepth = 4;

template <typename T>
T LoadAs(const std::byte* at) {
  T value;
  std::memcpy(&value, at, sizeof(T));
  return value;
}

absl::string_view AsText(std::span<const std::byte> bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// A key or name from the file in a message: bounded, nothing that could disturb a log.
std::string Quoted(absl::string_view name) {
  std::string text;
  for (const char c : name.substr(0, 80)) {
    text.push_back(c >= ' ' && c <= '~' ? c : '?');
  }
  return text;
}

}  // namespace

// Walks the header once; every length is checked against what is left before it is used.
class GgufParser {
 public:
  GgufParser(std::span<const std::byte> bytes, std::string file) : bytes_(bytes) {
    result_.file_ = std::move(file);
  }

  absl::StatusOr<GgufFile> Run() {
    TANDEM_RETURN_IF_ERROR(ReadHeader());
    for (uint64_t i = 0; i < num_values_; ++i) {
      TANDEM_RETURN_IF_ERROR(ReadKeyValue(i));
    }
    TANDEM_ASSIGN_OR_RETURN(
        const std::optional<int64_t> alignment,
        result_.Int("general.alignment", 1, static_cast<int64_t>(kMaxAlignment)));
    alignment_ = alignment ? static_cast<uint64_t>(*alignment) : kDefaultAlignment;
    if (!std::has_single_bit(alignment_)) {
      return Invalid(absl::StrCat("general.alignment is ", alignment_, ", not a power of two"));
    }
    for (uint64_t i = 0; i < num_tensors_; ++i) {
      TANDEM_RETURN_IF_ERROR(ReadTensorInfo(i));
    }
    TANDEM_RETURN_IF_ERROR(PlaceTensors());
    TANDEM_RETURN_IF_ERROR(CheckNoOverlap(result_.tensors_, result_.file_));
    return std::move(result_);
  }

 private:
  using Type = GgufFile::Type;

  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(result_.file_, ": ", what));
  }
  absl::Status Truncated(absl::string_view field) const {
    return Invalid(absl::StrCat("ends inside ", field));
  }
  uint64_t left() const { return bytes_.size() - at_; }

  template <typename T>
  absl::Status Read(absl::string_view field, T* out) {
    if (left() < sizeof(T)) {
      return Truncated(field);
    }
    *out = LoadAs<T>(bytes_.data() + at_);
    at_ += sizeof(T);
    return absl::OkStatus();
  }

  absl::Status ReadText(absl::string_view field, uint64_t max, absl::string_view* out) {
    uint64_t length = 0;
    TANDEM_RETURN_IF_ERROR(Read(field, &length));
    if (length > max) {
      return Invalid(absl::StrCat(field, " is ", length, " bytes long; allowed: ", max));
    }
    if (length > left()) {
      return Truncated(field);
    }
    *out = AsText(bytes_.subspan(at_, length));
    at_ += length;
    return absl::OkStatus();
  }

  absl::Status ReadHeader() {
    uint32_t magic = 0;
    uint32_t version = 0;
    TANDEM_RETURN_IF_ERROR(Read("magic", &magic));
    if (magic != kMagic) {
      return Invalid("magic is not GGUF");
    }
    TANDEM_RETURN_IF_ERROR(Read("version", &version));
    if (version == kVersionSwapped) {
      return absl::UnimplementedError(absl::StrCat(result_.file_, ": version: big-endian file"));
    }
    if (version != kVersion) {
      return absl::UnimplementedError(
          absl::StrCat(result_.file_, ": version is ", version, "; supported: ", kVersion));
    }
    TANDEM_RETURN_IF_ERROR(Read("tensor_count", &num_tensors_));
    TANDEM_RETURN_IF_ERROR(Read("metadata_kv_count", &num_values_));
    // The smallest entries: 8 + 4 + 1 bytes of metadata, 8 + 4 + 8 + 4 + 8 of a tensor.
    if (num_values_ > left() / 13) {
      return Invalid(absl::StrCat("metadata_kv_count ", num_values_, " exceeds the file"));
    }
    if (num_tensors_ > left() / 32) {
      return Invalid(absl::StrCat("tensor_count ", num_tensors_, " exceeds the file"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadKeyValue(uint64_t index) {
    absl::string_view key;
    TANDEM_RETURN_IF_ERROR(ReadText(absl::StrCat("metadata key ", index), kMaxKeyBytes, &key));
    const std::string name = Quoted(key);
    GgufFile::Value value;
    TANDEM_RETURN_IF_ERROR(ReadType(name, &value.type));
    if (value.type == Type::kArray) {
      TANDEM_RETURN_IF_ERROR(ReadArray(name, &value));
    } else if (value.type == Type::kString) {
      absl::string_view text;
      TANDEM_RETURN_IF_ERROR(ReadText(name, bytes_.size(), &text));
      value.bytes = {reinterpret_cast<const std::byte*>(text.data()), text.size()};
    } else {
      const size_t size = GgufFile::SizeOf(value.type);
      if (left() < size) {
        return Truncated(name);
      }
      value.bytes = bytes_.subspan(at_, size);
      at_ += size;
    }
    if (!result_.values_.emplace(key, value).second) {
      return Invalid(absl::StrCat("metadata key ", name, " occurs twice"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadType(const std::string& name, Type* type) {
    uint32_t number = 0;
    TANDEM_RETURN_IF_ERROR(Read(name, &number));
    if (number > static_cast<uint32_t>(Type::kFloat64)) {
      return Invalid(absl::StrCat(name, " has the unknown value type ", number));
    }
    *type = static_cast<Type>(number);
    return absl::OkStatus();
  }

  absl::Status ReadArray(const std::string& name, GgufFile::Value* value) {
    TANDEM_RETURN_IF_ERROR(ReadType(name, &value->element_type));
    TANDEM_RETURN_IF_ERROR(Read(name, &value->count));
    const uint64_t first = at_;
    TANDEM_RETURN_IF_ERROR(SkipElements(name, value->element_type, value->count, 1));
    value->bytes = bytes_.subspan(first, at_ - first);
    return absl::OkStatus();
  }

  absl::Status SkipElements(const std::string& name, Type type, uint64_t count, int depth) {
    // Bytes that one element has at least: bounds the loops by the file's size.
    const uint64_t least = type == Type::kString  ? 8
                           : type == Type::kArray ? 12
                                                  : GgufFile::SizeOf(type);
    if (count > left() / least) {
      return Invalid(absl::StrCat(name, " has ", count, " elements, more than the file holds"));
    }
    if (type == Type::kString) {
      absl::string_view text;
      for (uint64_t i = 0; i < count; ++i) {
        TANDEM_RETURN_IF_ERROR(ReadText(name, bytes_.size(), &text));
      }
      return absl::OkStatus();
    }
    if (type != Type::kArray) {
      at_ += count * least;
      return absl::OkStatus();
    }
    if (depth >= kMaxArrayDepth) {
      return Invalid(absl::StrCat(name, " nests arrays deeper than ", kMaxArrayDepth));
    }
    for (uint64_t i = 0; i < count; ++i) {
      GgufFile::Value inner;
      TANDEM_RETURN_IF_ERROR(ReadType(name, &inner.element_type));
      TANDEM_RETURN_IF_ERROR(Read(name, &inner.count));
      TANDEM_RETURN_IF_ERROR(SkipElements(name, inner.element_type, inner.count, depth + 1));
    }
    return absl::OkStatus();
  }

  absl::Status ReadTensorInfo(uint64_t index) {
    absl::string_view text;
    TANDEM_RETURN_IF_ERROR(ReadText(absl::StrCat("name of tensor ", index), kMaxKeyBytes, &text));
    const std::string field = absl::StrCat("tensor ", Quoted(text));
    uint32_t num_dims = 0;
    TANDEM_RETURN_IF_ERROR(Read(field, &num_dims));
    if (num_dims < 1 || num_dims > kMaxTensorDims) {
      return Invalid(
          absl::StrCat(field, " has ", num_dims, " dimensions; allowed: 1 to ", kMaxTensorDims));
    }
    StoredTensor tensor;
    tensor.dims.resize(num_dims);
    for (uint32_t i = 0; i < num_dims; ++i) {
      uint64_t dim = 0;
      TANDEM_RETURN_IF_ERROR(Read(field, &dim));
      // The file lists the innermost dimension first.
      tensor.dims[num_dims - 1 - i] = static_cast<int64_t>(std::min(dim, kMaxTensorDim + 1));
    }
    uint32_t type = 0;
    uint64_t offset = 0;
    TANDEM_RETURN_IF_ERROR(Read(field, &type));
    TANDEM_RETURN_IF_ERROR(Read(field, &offset));
    const std::optional<TensorType> known = TensorTypeOfGguf(type);
    if (!known) {
      return absl::UnimplementedError(
          absl::StrCat(result_.file_, ": ", field, " has the tensor type ", type,
                       "; supported: F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q4_K, Q5_K, "
                       "Q6_K"));
    }
    tensor.type = *known;
    const absl::StatusOr<uint64_t> bytes = BytesOfTensor(tensor.type, tensor.dims);
    if (!bytes.ok()) {
      return Invalid(absl::StrCat(field, " ", bytes.status().message()));
    }
    tensor.bytes = *bytes;
    const auto [entry, inserted] = result_.tensors_.emplace(std::string(text), std::move(tensor));
    if (!inserted) {
      return Invalid(absl::StrCat(field, " occurs twice"));
    }
    offsets_.emplace_back(entry->first, offset);
    return absl::OkStatus();
  }

  // Offsets count from the first aligned byte after the directory.
  absl::Status PlaceTensors() {
    const uint64_t start = (at_ + alignment_ - 1) / alignment_ * alignment_;
    if (start > bytes_.size() && !offsets_.empty()) {
      return Truncated("the padding before the tensor data");
    }
    for (const auto& [name, offset] : offsets_) {
      StoredTensor& tensor = result_.tensors_.find(name)->second;
      const uint64_t space = bytes_.size() - start;
      if (offset % alignment_ != 0) {
        return Invalid(absl::StrCat("tensor ", Quoted(name), " has offset ", offset,
                                    ", not a multiple of the alignment ", alignment_));
      }
      if (offset > space || tensor.bytes > space - offset) {
        return Invalid(absl::StrCat("tensor ", Quoted(name), " with ", tensor.bytes,
                                    " bytes at offset ", offset, " exceeds the file (truncated?)"));
      }
      tensor.data = bytes_.data() + start + offset;
    }
    return absl::OkStatus();
  }

  std::span<const std::byte> bytes_;
  uint64_t at_ = 0;
  uint64_t num_tensors_ = 0;
  uint64_t num_values_ = 0;
  uint64_t alignment_ = kDefaultAlignment;
  std::vector<std::pair<std::string, uint64_t>> offsets_;
  GgufFile result_;
};

absl::StatusOr<GgufFile> GgufFile::Parse(std::span<const std::byte> bytes, std::string file) {
  return GgufParser(bytes, std::move(file)).Run();
}

size_t GgufFile::SizeOf(Type type) {
  switch (type) {
    case Type::kUint8:
    case Type::kInt8:
    case Type::kBool:
      return 1;
    case Type::kUint16:
    case Type::kInt16:
      return 2;
    case Type::kUint32:
    case Type::kInt32:
    case Type::kFloat32:
      return 4;
    case Type::kUint64:
    case Type::kInt64:
    case Type::kFloat64:
      return 8;
    case Type::kString:
    case Type::kArray:
      break;
  }
  return 1;
}

// Nothing for types that are no integers, and for those over 2^63.
std::optional<int64_t> GgufFile::IntegerAt(Type type, const std::byte* at) {
  switch (type) {
    case Type::kUint8:
      return LoadAs<uint8_t>(at);
    case Type::kInt8:
      return LoadAs<int8_t>(at);
    case Type::kUint16:
      return LoadAs<uint16_t>(at);
    case Type::kInt16:
      return LoadAs<int16_t>(at);
    case Type::kUint32:
      return LoadAs<uint32_t>(at);
    case Type::kInt32:
      return LoadAs<int32_t>(at);
    case Type::kInt64:
      return LoadAs<int64_t>(at);
    case Type::kUint64: {
      const uint64_t value = LoadAs<uint64_t>(at);
      if (value > static_cast<uint64_t>(std::numeric_limits<int64_t>::max())) {
        return std::nullopt;
      }
      return static_cast<int64_t>(value);
    }
    default:
      return std::nullopt;
  }
}

absl::Status GgufFile::WrongType(absl::string_view key, absl::string_view wanted) const {
  return absl::InvalidArgumentError(absl::StrCat(file_, ": ", key, " is not ", wanted));
}

const GgufFile::Value* GgufFile::Find(absl::string_view key) const {
  const auto found = values_.find(key);
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufFile::IsArray(absl::string_view key) const {
  const Value* value = Find(key);
  return value != nullptr && value->type == Type::kArray;
}

absl::StatusOr<std::optional<int64_t>> GgufFile::Int(absl::string_view key, int64_t min,
                                                     int64_t max) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<int64_t>();
  }
  if (value->type == Type::kArray || value->type == Type::kString) {
    return WrongType(key, "an integer");
  }
  const std::optional<int64_t> number = IntegerAt(value->type, value->bytes.data());
  if (!number) {
    return WrongType(key, "an integer below 2^63");
  }
  if (*number < min || *number > max) {
    return absl::InvalidArgumentError(
        absl::StrCat(file_, ": ", key, " is ", *number, "; allowed: ", min, " to ", max));
  }
  return number;
}

absl::StatusOr<std::optional<double>> GgufFile::Number(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<double>();
  }
  if (value->type == Type::kFloat32) {
    return std::optional<double>(LoadAs<float>(value->bytes.data()));
  }
  if (value->type == Type::kFloat64) {
    return std::optional<double>(LoadAs<double>(value->bytes.data()));
  }
  if (value->type != Type::kArray && value->type != Type::kString) {
    if (const auto number = IntegerAt(value->type, value->bytes.data())) {
      return std::optional<double>(static_cast<double>(*number));
    }
  }
  return WrongType(key, "a number");
}

absl::StatusOr<std::optional<bool>> GgufFile::Bool(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<bool>();
  }
  if (value->type != Type::kBool) {
    return WrongType(key, "a boolean");
  }
  return std::optional<bool>(value->bytes[0] != std::byte{0});
}

absl::StatusOr<std::optional<std::string>> GgufFile::String(absl::string_view key) const {
  const Value* value = Find(key);
  if (value == nullptr) {
    return std::optional<std::string>();
  }
  if (value->type != Type::kString) {
    return WrongType(key, "a string");
  }
  return std::optional<std::string>(AsText(value->bytes));
}

absl::StatusOr<std::vector<std::string>> GgufFile::Strings(absl::string_view key) const {
  std::vector<std::string> strings;
  const Value* value = Find(key);
  if (value == nullptr) {
    return strings;
  }
  if (value->type != Type::kArray || value->element_type != Type::kString) {
    return WrongType(key, "an array of strings");
  }
  strings.reserve(value->count);
  const std::byte* at = value->bytes.data();
  for (uint64_t i = 0; i < value->count; ++i) {
    const uint64_t length = LoadAs<uint64_t>(at);
    strings.emplace_back(AsText({at + sizeof(length), length}));
    at += sizeof(length) + length;
  }
  return strings;
}

absl::StatusOr<std::vector<float>> GgufFile::Floats(absl::string_view key) const {
  std::vector<float> floats;
  const Value* value = Find(key);
  if (value == nullptr) {
    return floats;
  }
  if (value->type != Type::kArray || value->element_type != Type::kFloat32) {
    return WrongType(key, "an array of float32");
  }
  floats.resize(value->count);
  if (value->count > 0) {
    std::memcpy(floats.data(), value->bytes.data(), value->bytes.size());
  }
  return floats;
}

absl::StatusOr<std::vector<int32_t>> GgufFile::Ints(absl::string_view key) const {
  std::vector<int32_t> ints;
  const Value* value = Find(key);
  if (value == nullptr) {
    return ints;
  }
  if (value->type != Type::kArray || value->element_type == Type::kString ||
      value->element_type == Type::kArray) {
    return WrongType(key, "an array of integers");
  }
  const size_t size = SizeOf(value->element_type);
  ints.reserve(value->count);
  for (uint64_t i = 0; i < value->count; ++i) {
    const auto number = IntegerAt(value->element_type, value->bytes.data() + i * size);
    if (!number || *number < std::numeric_limits<int32_t>::min() ||
        *number > std::numeric_limits<int32_t>::max()) {
      return WrongType(key, "an array of 32-bit integers");
    }
    ints.push_back(static_cast<int32_t>(*number));
  }
  return ints;
}

}  // namespace tandem::model_files
