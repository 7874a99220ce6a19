#include "common/model_files/safetensors_reader.h"

#include <cstdint>
#include <cstring>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/status_macros.h"
#include "common/model_files/json_fields.h"
#include "nlohmann/json.hpp"

namespace tandem::model_files {
namespace {

using nlohmann::json;

constexpr uint64_t kMaxHeaderBytes = 100'000'000;  // the format's own limit

// A non-negative integer below 2^62; JSON's other numbers are nothing.
std::optional<uint64_t> Unsigned(const json& value) {
  if (!value.is_number_unsigned()) {
    return std::nullopt;
  }
  const uint64_t number = value.get<uint64_t>();
  return number < (uint64_t{1} << 62) ? std::optional<uint64_t>(number) : std::nullopt;
}

// One entry of the header: {"dtype": "BF16", "shape": [2, 3], "data_offsets": [0, 12]}.
class EntryReader {
 public:
  EntryReader(const json& entry, std::string field) : entry_(entry), field_(std::move(field)) {}

  absl::StatusOr<StoredTensor> Read(std::span<const std::byte> data) {
    StoredTensor tensor;
    if (!entry_.is_object()) {
      return Invalid("is not an object");
    }
    TANDEM_RETURN_IF_ERROR(ReadType(&tensor));
    TANDEM_RETURN_IF_ERROR(ReadShape(&tensor));
    const auto offsets = entry_.find("data_offsets");
    if (offsets == entry_.end() || !offsets->is_array() || offsets->size() != 2) {
      return Invalid("data_offsets is not a pair");
    }
    const std::optional<uint64_t> begin = Unsigned((*offsets)[0]);
    const std::optional<uint64_t> end = Unsigned((*offsets)[1]);
    if (!begin || !end || *begin > *end) {
      return Invalid("data_offsets are not two rising positions");
    }
    if (*end > data.size()) {
      return Invalid(absl::StrCat("data_offsets end at ", *end, " of ", data.size(),
                                  " bytes of data (truncated?)"));
    }
    if (*end - *begin != tensor.bytes) {
      return Invalid(absl::StrCat("data_offsets span ", *end - *begin, " bytes; its shape takes ",
                                  tensor.bytes));
    }
    tensor.data = data.data() + *begin;
    return tensor;
  }

 private:
  absl::Status Invalid(absl::string_view what) const {
    return absl::InvalidArgumentError(absl::StrCat(field_, " ", what));
  }

  absl::Status ReadType(StoredTensor* tensor) const {
    const auto type = entry_.find("dtype");
    if (type == entry_.end() || !type->is_string()) {
      return Invalid("dtype is not a string");
    }
    const std::string& name = type->get_ref<const std::string&>();
    if (name == "F32") {
      tensor->type = TensorType::kF32;
    } else if (name == "F16") {
      tensor->type = TensorType::kF16;
    } else if (name == "BF16") {
      tensor->type = TensorType::kBF16;
    } else {
      return absl::UnimplementedError(
          absl::StrCat(field_, " dtype is ", name.substr(0, 20), "; supported: F32, F16, BF16"));
    }
    return absl::OkStatus();
  }

  absl::Status ReadShape(StoredTensor* tensor) const {
    const auto shape = entry_.find("shape");
    if (shape == entry_.end() || !shape->is_array()) {
      return Invalid("shape is not an array");
    }
    for (const json& dim : *shape) {
      const std::optional<uint64_t> number = Unsigned(dim);
      if (!number) {
        return Invalid("shape holds something else than sizes");
      }
      tensor->dims.push_back(static_cast<int64_t>(*number));
    }
    const absl::StatusOr<uint64_t> bytes = BytesOfTensor(tensor->type, tensor->dims);
    if (!bytes.ok()) {
      return Invalid(bytes.status().message());
    }
    tensor->bytes = *bytes;
    return absl::OkStatus();
  }

  const json& entry_;
  std::string field_;
};

// The format has no place for bytes that belong to no tensor: they hide a cut or a second file.
absl::Status CheckNothingElse(const TensorTable& tensors, uint64_t data_bytes,
                              const std::string& file) {
  uint64_t tensor_bytes = 0;
  for (const auto& [name, tensor] : tensors) {
    tensor_bytes += tensor.bytes;
  }
  if (tensor_bytes != data_bytes) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": data_offsets of its tensors cover ",
                                                   tensor_bytes, " of ", data_bytes,
                                                   " bytes of data"));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<TensorTable> ParseSafetensors(std::span<const std::byte> bytes,
                                             const std::string& file) {
  uint64_t header_bytes = 0;
  if (bytes.size() < sizeof(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": ends inside the header's length"));
  }
  std::memcpy(&header_bytes, bytes.data(), sizeof(header_bytes));
  if (header_bytes > kMaxHeaderBytes || header_bytes > bytes.size() - sizeof(header_bytes)) {
    return absl::InvalidArgumentError(absl::StrCat(file, ": header length ", header_bytes,
                                                   " exceeds the file or ", kMaxHeaderBytes));
  }
  const std::span<const std::byte> header = bytes.subspan(sizeof(header_bytes), header_bytes);
  const std::span<const std::byte> data = bytes.subspan(sizeof(header_bytes) + header_bytes);
  TANDEM_ASSIGN_OR_RETURN(
      const json directory,
      ParseJsonObject({reinterpret_cast<const char*>(header.data()), header.size()}, file));
  TensorTable tensors;
  for (const auto& [name, entry] : directory.items()) {
    if (name == "__metadata__") {
      continue;
    }
    EntryReader reader(entry, absl::StrCat(file, ": tensor ", name.substr(0, 80)));
    TANDEM_ASSIGN_OR_RETURN(StoredTensor tensor, reader.Read(data));
    tensors.emplace(name, std::move(tensor));
  }
  TANDEM_RETURN_IF_ERROR(CheckNoOverlap(tensors, file));
  TANDEM_RETURN_IF_ERROR(CheckNothingElse(tensors, data.size(), file));
  return tensors;
}

}  // namespace tandem::model_files
