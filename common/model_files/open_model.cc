#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status_macros.h"
#include "common/model_files/gguf_model.h"
#include "common/model_files/hf_model.h"
#include "common/model_files/model_files.h"
#include "common/shm/region.h"

namespace tandem::model_files {
namespace {

// Owns the mappings that its views point into.
class OpenedModel : public ModelFiles {
 public:
  OpenedModel(std::string name, ModelParts parts, std::vector<shm::MappedFile> mappings)
      : name_(std::move(name)), mappings_(std::move(mappings)), parts_(std::move(parts)) {}

  const ModelShape& shape() const override { return parts_.shape; }
  const tokenizer::TokenizerSpec& tokenizer() const override { return parts_.tokenizer; }
  const GenerationDefaults& generation_defaults() const override { return parts_.defaults; }
  const std::string& name() const override { return name_; }
  std::optional<WeightView> Find(WeightRole role, int32_t layer) const override {
    return parts_.weights.Find(role, layer);
  }
  uint64_t weight_bytes() const override { return parts_.weight_bytes; }

 private:
  const std::string name_;
  const std::vector<shm::MappedFile> mappings_;
  const ModelParts parts_;
};

std::string FolderName(const std::string& path) {
  std::error_code error;
  std::filesystem::path folder = std::filesystem::weakly_canonical(path, error);
  if (error) {
    folder = path;
  }
  const std::string name = folder.filename().string();
  return name.empty() ? path : name;
}

}  // namespace

absl::StatusOr<std::unique_ptr<ModelFiles>> OpenModel(const std::string& path,
                                                      const OpenOptions& options) {
  std::error_code error;
  const std::filesystem::file_status status = std::filesystem::status(path, error);
  if (!std::filesystem::exists(status)) {
    return absl::NotFoundError(absl::StrCat(path, ": no such file or folder"));
  }
  std::vector<shm::MappedFile> mappings;
  if (std::filesystem::is_directory(status)) {
    TANDEM_ASSIGN_OR_RETURN(ModelParts parts, ReadHfModel(path, options, &mappings));
    return std::make_unique<OpenedModel>(FolderName(path), std::move(parts), std::move(mappings));
  }
  const std::filesystem::path file(path);
  if (file.extension() != ".gguf") {
    return absl::InvalidArgumentError(
        absl::StrCat(path, ": neither a .gguf file nor a Hugging Face folder"));
  }
  TANDEM_ASSIGN_OR_RETURN(shm::MappedFile mapping, shm::MappedFile::Open(path));
  TANDEM_ASSIGN_OR_RETURN(ModelParts parts,
                          ReadGgufModel({mapping.data(), mapping.size()}, path, options));
  mappings.push_back(std::move(mapping));
  return std::make_unique<OpenedModel>(file.stem().string(), std::move(parts), std::move(mappings));
}

}  // namespace tandem::model_files
